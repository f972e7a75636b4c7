/** Keys inside the explorer: they are not the notebook's, and a group of buttons is one tab stop. */

const SUPPRESS = 'data-lm-suppress-shortcuts';

/**
 * Keep plain keys in an element: in a notebook `x` cuts the cell around it. Keys with Ctrl, Meta or
 * Alt, and an Escape that nothing here has used, go on to the page. The answer ends it.
 */
export function keepKeys(host: HTMLElement): () => void {
  const goesOn = (event: KeyboardEvent): boolean =>
    event.ctrlKey || event.metaKey || event.altKey || event.key === 'Escape';
  // Notebook 7 listens before the key comes here and JupyterLab after: each is told in its way.
  // What has the focus must say it itself: Lumino looks above it only if no command fits it.
  const before = (event: KeyboardEvent): void => {
    const { target } = event;
    if (target instanceof Element && host.contains(target)) {
      target.toggleAttribute(SUPPRESS, !goesOn(event));
    }
  };
  const after = (event: KeyboardEvent): void => {
    if (!goesOn(event) || event.defaultPrevented) {
      event.stopPropagation();
    }
  };
  // What is clicked has the focus, or the next key would be the notebook's.
  host.tabIndex = -1;
  window.addEventListener('keydown', before, true);
  host.addEventListener('keydown', after);
  return () => window.removeEventListener('keydown', before, true);
}

const groups = new WeakSet<HTMLElement>();

/** Make the buttons of a group one tab stop with arrows inside; again whenever they are new ones. */
export function rove(group: HTMLElement): void {
  if (!groups.has(group)) {
    groups.add(group);
    group.addEventListener('focusin', event => stopAt(group, event.target as HTMLElement));
    group.addEventListener('keydown', event => step(group, event));
  }
  const buttons = buttonsOf(group);
  stopAt(group, buttons.find(one => one.getAttribute('tabindex') === '0') ?? buttons[0]);
}

function buttonsOf(group: HTMLElement): HTMLElement[] {
  return [...group.querySelectorAll<HTMLElement>('button')].filter(one => !one.hidden);
}

function stopAt(group: HTMLElement, stop: HTMLElement | undefined): void {
  const buttons = buttonsOf(group);
  if (stop !== undefined && buttons.includes(stop)) {
    buttons.forEach(one => (one.tabIndex = one === stop ? 0 : -1));
  }
}

function step(group: HTMLElement, event: KeyboardEvent): void {
  // A column that has no room is not drawn: it can have no focus.
  const buttons = buttonsOf(group).filter(one => one.checkVisibility?.() ?? true);
  const at = buttons.indexOf(event.target as HTMLElement);
  const next = nextStop(event.key, at, buttons.length);
  if (next === null || event.ctrlKey || event.metaKey || event.altKey) {
    return;
  }
  event.preventDefault();
  buttons[next].focus();
}

/** Which of so many buttons a key goes to from one of them; null where it goes to none. */
export function nextStop(key: string, at: number, count: number): number | null {
  const to = new Map([
    ['ArrowLeft', at - 1],
    ['ArrowUp', at - 1],
    ['ArrowRight', at + 1],
    ['ArrowDown', at + 1],
    ['Home', 0],
    ['End', count - 1]
  ]).get(key);
  return at < 0 || to === undefined ? null : Math.min(Math.max(to, 0), count - 1);
}
