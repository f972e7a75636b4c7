/** Elements made from text, never from markup: what a notebook holds is shown as it is. */

import { splitNames } from '../format.js';

type Child = Node | string | null;
type Attributes = Record<string, string | number | boolean | null>;

/** An element with attributes and children; null leaves an attribute or a child out. */
export function h<K extends keyof HTMLElementTagNameMap>(
  tag: K,
  attributes: Attributes = {},
  ...children: Child[]
): HTMLElementTagNameMap[K] {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== null && value !== false) {
      element.setAttribute(name, value === true ? '' : String(value));
    }
  }
  element.append(...children.filter((child): child is Node | string => child !== null));
  return element;
}

/** A sentence in which names stand between backticks: they are drawn as code. */
export function sentence(text: string): Child[] {
  return splitNames(text).map(([piece, isName]) =>
    isName ? h('code', { class: 'nbx-Name' }, piece) : piece
  );
}

/** A button that does something. */
export function button(
  text: string,
  action: () => void,
  attributes: Attributes = {}
): HTMLButtonElement {
  const made = h('button', { type: 'button', class: 'nbx-Button', ...attributes }, text);
  made.addEventListener('click', action);
  return made;
}

/** Buttons of which one is pressed. */
export function choice<T extends string>(
  label: string,
  options: readonly (readonly [T, string])[],
  chosen: T,
  choose: (value: T) => void
): HTMLElement {
  const group = h('div', { class: 'nbx-Choice', role: 'group', 'aria-label': label });
  for (const [value, text] of options) {
    const one = button(text, () => {
      for (const other of group.children) {
        other.setAttribute('aria-pressed', String(other === one));
      }
      choose(value);
    });
    one.setAttribute('aria-pressed', String(value === chosen));
    group.append(one);
  }
  return group;
}

/** A square in a category's colour. */
export function swatch(paint: string): HTMLElement {
  return h('span', { class: 'nbx-Swatch', style: paint, 'aria-hidden': 'true' });
}
