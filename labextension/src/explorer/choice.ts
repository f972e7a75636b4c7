/** What a person has chosen; every part of the explorer follows it, and it follows the widget. */

export interface IChoice {
  /** Index of the next event at the chosen moment. */
  moment: number;
  /** First and last event of the brushed stretch; null for all. */
  span: [number, number] | null;
  /** Number of an allocation in the recording; null for none. */
  tensor: number | null;
}

/** A kernel that still has the recording, and tells of any moment that is chosen. */
export interface IKernel {
  /** Choose the moment at a time, or the stretch between two; nanoseconds since the start. */
  chooseTimes(times: number[]): void;
}

type Listener = (choice: IChoice) => void;

export class Choice {
  /** The tab in front; a matter of this page, of which a widget's model hears nothing. */
  tab = 'moment';

  constructor(private _now: IChoice) {}

  get now(): IChoice {
    return this._now;
  }

  /** Change some of it; listeners hear of it once, and only of real changes. */
  set(changes: Partial<IChoice>): void {
    const next = { ...this._now, ...changes };
    const same =
      next.moment === this._now.moment &&
      next.tensor === this._now.tensor &&
      next.span?.[0] === this._now.span?.[0] &&
      next.span?.[1] === this._now.span?.[1];
    if (same) {
      return;
    }
    this._now = next;
    this._listeners.forEach(listener => listener(next));
  }

  /** Hear of changes until the answer is called. */
  listen(listener: Listener): () => void {
    this._listeners.add(listener);
    return () => this._listeners.delete(listener);
  }

  private readonly _listeners = new Set<Listener>();
}
