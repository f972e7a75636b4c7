/** The extension's icon: a memory chip whose inside is filled from the bottom. */

import { LabIcon } from '@jupyterlab/ui-components';

const CHIP = `<svg xmlns="http://www.w3.org/2000/svg" width="16" viewBox="0 0 24 24">
  <g class="jp-icon3" fill="#616161">
    <path d="M5 4h14v16H5zM7 6v12h10V6z" fill-rule="evenodd"/>
    <path d="M2 6h2v2H2zm0 5h2v2H2zm0 5h2v2H2zm18-10h2v2h-2zm0 5h2v2h-2zm0 5h2v2h-2z"/>
    <path d="M8 12h8v5H8z"/>
    <path d="M8 9h5v2H8z" opacity=".5"/>
  </g>
</svg>`;

const BROOM = `<svg xmlns="http://www.w3.org/2000/svg" width="16" viewBox="0 0 24 24">
  <g class="jp-icon3" fill="#616161">
    <path d="M5 4h14v16H5zM7 6v12h10V6z" fill-rule="evenodd"/>
    <path d="M2 6h2v2H2zm0 5h2v2H2zm0 5h2v2H2zm18-10h2v2h-2zm0 5h2v2h-2zm0 5h2v2h-2z"/>
    <path d="M11 8h2v4h2.5L12 16.5 8.500 12H11z"/>
  </g>
</svg>`;

export const memoryIcon = new LabIcon({ name: 'nbmem:memory', svgstr: CHIP });
export const freeIcon = new LabIcon({ name: 'nbmem:free', svgstr: BROOM });
