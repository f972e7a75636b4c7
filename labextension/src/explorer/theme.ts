/** The page's colours for the pictures, which are canvases and inherit nothing. */

import { COLOURS, HATCHES } from '../palette.js';

export interface ITheme {
  ink: string;
  quiet: string;
  line: string;
  ground: string;
  dark: boolean;
}

/** What the explorer's element shows now. */
export function themeOf(element: HTMLElement): ITheme {
  const style = getComputedStyle(element);
  const [red, green, blue] = (style.color.match(/[\d.]+/g) ?? ['0', '0', '0']).map(Number);
  const dark = 0.3 * red + 0.59 * green + 0.11 * blue > 127;
  const tint = (alpha: number): string => `rgba(${red}, ${green}, ${blue}, ${alpha})`;
  return {
    ink: tint(0.87),
    quiet: tint(0.66),
    line: tint(0.13),
    ground: style.backgroundColor,
    dark
  };
}

/** Call back when the page may have changed its colours; the answer ends it. */
export function watchTheme(changed: () => void): () => void {
  const observer = new MutationObserver(changed);
  const attributeFilter = [
    'class',
    'style',
    'data-theme',
    'data-jp-theme-name',
    'data-jp-theme-light'
  ];
  observer.observe(document.body, { attributes: true, attributeFilter });
  observer.observe(document.documentElement, { attributes: true, attributeFilter });
  const scheme = matchMedia('(prefers-color-scheme: dark)');
  scheme.addEventListener('change', changed);
  return () => {
    observer.disconnect();
    scheme.removeEventListener('change', changed);
  };
}

export function colourOf(key: string): string {
  return COLOURS.get(key) ?? '#888888';
}

export function hatchOf(key: string): string | null {
  return HATCHES.get(key) ?? null;
}

/** Inline CSS that fills a box as nbmem/views/palette.py does. */
export function paintOf(key: string): string {
  const ground = colourOf(key);
  const line = hatchOf(key);
  if (key === 'free') {
    return 'box-shadow: inset 0 0 0 1px rgba(128, 128, 128, 0.7)';
  }
  return line === null
    ? `background-color: ${ground}`
    : `background: repeating-linear-gradient(135deg, ${line} 0 1.5px, ${ground} 1.5px 4.5px)`;
}

/** Black or white, whichever has more contrast on a colour that the paper may shine through. */
export function inkOn(colour: string, alpha = 1, dark = false): string {
  const paper = (1 - alpha) * (dark ? 17 : 255);
  const [red, green, blue] = [1, 3, 5].map(at => {
    const part = (paper + alpha * parseInt(colour.slice(at, at + 2), 16)) / 255;
    return part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4;
  });
  // Relative luminance; at 0.179 both have 4.6:1 (https://www.w3.org/TR/WCAG22/#dfn-contrast-ratio).
  return 0.2126 * red + 0.7152 * green + 0.0722 * blue > 0.179 ? '#1B1F24' : '#FFFFFF';
}
