/** Why a file is not shown. */

/** The end of a sentence for a person, behind the file's name: "it is truncated". */
export class FileError extends Error {}

const PATIENCE_MS = 30_000;

/** What a file may cost: one that was made to take for ever is given up. */
export class Patience {
  /** Throws a FileError once it is at its end; `step` counts what has been done. */
  ask(step: number): void {
    if (step % 1024 === 0 && performance.now() > this._end) {
      throw new FileError('it takes more than 30 s to be followed here: open it with nbmem report');
    }
  }

  private readonly _end = performance.now() + PATIENCE_MS;
}
