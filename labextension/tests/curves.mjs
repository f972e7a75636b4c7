// Prints what the page makes of snapshots: tests/browser/test_snapshot_viewer.py compares it with Python's.
import { readFileSync } from 'node:fs';

import { cardsIn } from '../lib/page/file.js';

const told = [];
for (const path of process.argv.slice(2)) {
  for (const [card, data] of await cardsIn(new Uint8Array(readFileSync(path)), path)) {
    const held = Object.fromEntries(
      data.categories.map(({ key }, category) => [key, data.moments.held[category]])
    );
    told.push({ path, card, event: data.moments.event, held, peak: data.peak, total: data.total });
  }
}
process.stdout.write(JSON.stringify(told));
