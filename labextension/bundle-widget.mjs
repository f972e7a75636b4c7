// Bundles the explorer for anywidget: one ES module and its style, inside the Python package.
import { copyFileSync } from 'node:fs';
import { fileURLToPath } from 'node:url';

import { rspack } from '@rspack/core';

const out = fileURLToPath(new URL('../nbmem/views/widget/static', import.meta.url));
const compiler = rspack({
  mode: 'production',
  devtool: false,
  entry: fileURLToPath(new URL('lib/explorer/widget.js', import.meta.url)),
  experiments: { outputModule: true },
  output: {
    path: out,
    filename: 'explorer.js',
    module: true,
    library: { type: 'module' },
    clean: true
  }
});

compiler.run((error, stats) => {
  if (error || stats.hasErrors()) {
    console.error(error ?? stats.toString('errors-only'));
    process.exit(1);
  }
  copyFileSync(new URL('style/explorer.css', import.meta.url), `${out}/explorer.css`);
});
