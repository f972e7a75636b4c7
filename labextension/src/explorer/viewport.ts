/** A listener that BokehJS leaves on the page for every plot, and that would keep the plot for ever. */

/** The class of a plot's views, as BokehJS has it. */
export interface IViewClass {
  prototype: { connect_signals(): void };
}

const known = new WeakSet<IViewClass>();
const ends = new WeakMap<object, AbortController>();

/** Let `letGo` end what a plot's view of this class hears from the viewport. */
export function watchViewport(views: IViewClass): void {
  if (known.has(views)) {
    return;
  }
  known.add(views);
  const connect = views.prototype.connect_signals;
  views.prototype.connect_signals = function (this: object): void {
    const viewport = window.visualViewport;
    if (viewport === null) {
      connect.call(this);
      return;
    }
    const end = new AbortController();
    ends.set(this, end);
    const add = viewport.addEventListener;
    viewport.addEventListener = (type: string, listener: EventListenerOrEventListenerObject) =>
      add.call(viewport, type, listener, { signal: end.signal });
    try {
      connect.call(this); // which is not interrupted: nobody else's listener gets in
    } finally {
      viewport.addEventListener = add;
    }
  };
}

/** A plot's view is taken out. */
export function letGo(view: object): void {
  ends.get(view)?.abort();
  ends.delete(view);
}
