// The golden messages that Python's tests read, too.

import { readdirSync, readFileSync } from 'node:fs';

const folder = new URL('../../tests/sidebar/golden/', import.meta.url);

export function golden(name) {
  return JSON.parse(readFileSync(new URL(`${name}.json`, folder), 'utf-8'));
}

export const names = readdirSync(folder).map(file => file.replace('.json', ''));
