// Bundles the explorer into the Python package: for anywidget one ES module and its style, for pages
// that stand alone BokehJS and one script that runs behind it. The files are in the repository, so
// that a clone has them without Node.js.
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
    optimization: {
      splitChunks: {
        cacheGroups: {
          // A file of its own, which changes with BokehJS alone.
          bokeh: { test: /[\\/]@bokeh[\\/]/, name: 'bokeh', filename: 'bokeh.js', chunks: 'all' },
          default: false,
          defaultVendors: false
        }
      }
    },
    output: { path, filename: 'page.js', iife: true, chunkLoadingGlobal: 'nbmemScripts' }
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
  const licence = new URL('node_modules/@bokeh/bokehjs/LICENSE', import.meta.url);
  copyFileSync(licence, `${path}/bokeh.LICENSE.txt`);
});
