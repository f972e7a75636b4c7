// Bundles the explorer into the Python package: for anywidget one ES module and its style, for pages
// that stand alone one script that has BokehJS in it.
import { copyFileSync, rmSync } from 'node:fs';
import { fileURLToPath } from 'node:url';

import { rspack } from '@rspack/core';

const path = fileURLToPath(new URL('../nbmem/views/widget/static', import.meta.url));
const entry = name => fileURLToPath(new URL(`lib/${name}.js`, import.meta.url));
const common = { mode: 'production', devtool: false };

rmSync(path, { recursive: true, force: true });
const compiler = rspack([
  {
    ...common,
    entry: entry('explorer/widget'),
    experiments: { outputModule: true },
    output: { path, filename: 'explorer.js', module: true, library: { type: 'module' } }
  },
  {
    ...common,
    entry: entry('page/page'),
    performance: { hints: false }, // it is BokehJS, and it is wanted whole
    optimization: { splitChunks: false },
    output: { path, filename: 'page.js', iife: true }
  }
]);

compiler.run((error, stats) => {
  if (error || stats.hasErrors()) {
    console.error(error ?? stats.toString('errors-only'));
    process.exit(1);
  }
  for (const style of ['explorer.css', 'viewer.css']) {
    copyFileSync(new URL(`style/${style}`, import.meta.url), `${path}/${style}`);
  }
});
