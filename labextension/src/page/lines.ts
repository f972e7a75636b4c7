/** Which line of the user's own code an event came from: see nbmem/report/analysis/source_lines.py. */

import type { IFrame, Stacks } from './snapshot.js';

/** Files of installed packages, of Python's own library, and what torch.compile writes. */
const LIBRARY =
  /(?:^|[\\/])(?:site|dist)-packages[\\/]|[\\/]lib(?:64)?[\\/]python\d(?:\.\d+)?t?[\\/]|^<frozen |[\\/]torchinductor_[^\\/]*[\\/]|^<eval_with_key>/;
/** Lines of a stack that are told. */
const MOST = 24;
const LONGEST = 240;
/** What would change how the text around it reads: controls, and marks of the writing's direction. */
const UNSEEN = /[\p{Cc}\p{Cf}\p{Cs}\p{Zl}\p{Zp}]/gu;

export class Lines {
  /** Each once; others refer to them by their index. */
  readonly texts: string[] = [];

  constructor(private readonly _stacks: Stacks) {}

  /** The innermost line outside of libraries, else the innermost of all; empty without a stack. */
  at(stack: number): string {
    return this.texts[this.index(stack)] ?? '';
  }

  /** Index of that text; -1 without a stack. */
  index(stack: number): number {
    let index = stack < 0 ? -1 : this._byStack.get(stack);
    if (index === undefined) {
      const frames = this._frames(stack);
      const frame = frames.find(({ file }) => !LIBRARY.test(file)) ?? frames[0];
      index = this.text(told(frame));
      this._byStack.set(stack, index);
    }
    return index;
  }

  /** The user's lines, the innermost first; where there are none, the innermost of a library's. */
  stack(stack: number): number[] {
    if (stack < 0) {
      return [];
    }
    const frames = this._frames(stack);
    const own = frames.filter(({ file }) => !LIBRARY.test(file));
    return (own.length > 0 ? own : frames).slice(0, MOST).map(frame => this.text(told(frame)));
  }

  text(text: string): number {
    const clean = text.replace(UNSEEN, '�');
    const clipped = clean.length > LONGEST ? `${clean.slice(0, LONGEST - 3)}...` : clean;
    const index = this._index.get(clipped) ?? this.texts.push(clipped) - 1;
    this._index.set(clipped, index);
    return index;
  }

  private _frames(stack: number): IFrame[] {
    return this._stacks.all[stack].map(frame => this._stacks.frames[frame]);
  }

  private readonly _byStack = new Map<number, number>();
  private readonly _index = new Map<string, number>();
}

function told({ file, line, name }: IFrame): string {
  const cell = /[\\/]ipykernel_\d+[\\/]\d+\.py$/.test(file);
  const where = cell ? `line ${line} of the cell` : `${file.split(/[\\/]/).pop()}:${line}`;
  return name === '<module>' || name.startsWith('<cell line: ') ? where : `${where} in ${name}`;
}
