/** What a tip's button may ask the kernel to do: a fixed list, whatever a message says. */

import type { ICommand } from './messages.js';

/** The subcommands of `%nbmem` that a button runs, and what each word after them may be. */
const ALLOWED: ReadonlyMap<string, RegExp> = new Map([['free', /^[A-Za-z_][A-Za-z0-9_]{0,79}$/]]);
const MOST_ARGUMENTS = 8;

/** Whether a button may run this command. */
export function isAllowed(command: ICommand): boolean {
  const words = ALLOWED.get(command.name);
  return (
    words !== undefined &&
    command.arguments.length <= MOST_ARGUMENTS &&
    command.arguments.every(word => words.test(word))
  );
}
