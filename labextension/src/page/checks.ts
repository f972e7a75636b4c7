/** What must hold in a snapshot before it is followed: see nbmem/core/files/checks.py. */

import { formatBytes } from '../format.js';
import { FileError } from './refused.js';
import {
  ALLOC,
  FREE_COMPLETED,
  INACTIVE,
  OOM,
  SEGMENT_ALLOC,
  SEGMENT_FREE,
  SEGMENT_MAP,
  SEGMENT_UNMAP,
  type ICard
} from './snapshot.js';

/** Of a card or a block: a PiB; of all of them together what numbers here are exact to. */
const MOST_BYTES = 2 ** 50;
const MOST_SUM = 2 ** 53;
/** How much larger a block may be than its tensor; old releases wrote its size alone. */
const LEFTOVER = 2 ** 20;

/** Throws a FileError. */
export function check(card: ICard): void {
  const { action, addr, size, segments, blocks } = card;
  let sum = 0;
  for (let event = 0; event < action.length; event++) {
    if (action[event] !== OOM) {
      within(addr[event], size[event], 0);
      sum += size[event];
    }
  }
  if (sum > MOST_SUM) {
    throw new FileError('its events are of more bytes than can be added up');
  }
  let end = 0;
  for (const segment of segments) {
    within(segment.addr, segment.size, 1);
    if (segment.addr < end) {
      throw new FileError('its segments overlap');
    }
    end = segment.addr + segment.size;
  }
  let home = 0;
  end = 0;
  for (const block of blocks) {
    within(block.addr, block.size, 1);
    const stop = block.addr + block.size;
    while (home < segments.length && segments[home].addr + segments[home].size <= block.addr) {
      home++;
    }
    const segment = segments[home];
    if (segment === undefined || block.addr < segment.addr || stop > segment.addr + segment.size) {
      throw new FileError('some of its blocks lie in no segment');
    }
    if (block.addr < end) {
      throw new FileError('its blocks overlap');
    }
    if (block.state !== INACTIVE && !(block.requested >= 0 && block.requested <= block.size)) {
      throw new FileError('some of its blocks are smaller than what was asked for');
    }
    end = stop;
  }
  checkSums(card);
}

/** A history and a layout at its end that cannot be of one card are refused. */
function checkSums({ action, size, segments, blocks, index }: ICard): void {
  const used = blocks.filter(({ state }) => state !== INACTIVE);
  let inUse = used.reduce((sum, { requested }) => sum + requested, 0);
  let reserved = segments.reduce((sum, segment) => sum + segment.size, 0);
  let worst = { beyond: inUse - reserved, event: action.length, inUse, reserved };
  for (let event = action.length - 1; event >= 0; event--) {
    const kind = action[event];
    if (kind === ALLOC || kind === FREE_COMPLETED) {
      inUse += kind === ALLOC ? -size[event] : size[event];
    } else if (kind === SEGMENT_ALLOC || kind === SEGMENT_MAP) {
      reserved -= size[event];
    } else if (kind === SEGMENT_FREE || kind === SEGMENT_UNMAP) {
      reserved += size[event];
    }
    if (inUse - reserved >= worst.beyond) {
      worst = { beyond: inUse - reserved, event, inUse, reserved };
    }
  }
  if (worst.beyond > LEFTOVER * used.length) {
    throw new FileError(
      `by it card ${index} had ${formatBytes(worst.inUse)} in use before event ` +
        `${worst.event.toLocaleString('en-US')}, where torch held only ${formatBytes(worst.reserved)} ` +
        'from the driver: it was cut, put together or made up'
    );
  }
}

function within(addr: number, size: number, least: number): void {
  if (addr < 0 || size < least || size > MOST_BYTES) {
    throw new FileError(`one of its rows is of ${size} bytes at ${addr}`);
  }
}
