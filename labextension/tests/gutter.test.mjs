/** Marks beside lines: only on lines that say what was measured. */

import assert from 'node:assert/strict';
import test from 'node:test';

import { EditorState } from '@codemirror/state';

import { linesIn, marked, putting } from '../lib/gutter.js';

const CODE = ['', 'model = make()', 'for x in data:', '    model(x)', '    model(x)'];
const LINES = {
  file: 'In [2]',
  code: CODE.map((text, i) => [i + 1, text]),
  rows: [
    [2, 10, 20, 30],
    [4, 1, 2, 3],
    [5, 4, 5, 6]
  ],
  elsewhere: []
};
const WRITTEN = ['%%memtrace --stacks', ...CODE.slice(1)];

test('lines are found below what IPython takes away, and only as they were recorded', () => {
  const found = [
    { line: 2, peak: 10, kept: 20, taken: 30 },
    { line: 4, peak: 1, kept: 2, taken: 3 },
    { line: 5, peak: 4, kept: 5, taken: 6 }
  ];
  assert.deepEqual(linesIn(WRITTEN, LINES), found);
  const lower = found.map(row => ({ ...row, line: row.line + 2 }));
  assert.deepEqual(linesIn(['', '', ...WRITTEN, 'more'], LINES), lower);
  assert.deepEqual(linesIn(WRITTEN.with(2, 'for y in data:'), LINES), []);
  assert.deepEqual(linesIn(WRITTEN.slice(0, 4), LINES), []);
  assert.deepEqual(linesIn([], { ...LINES, code: [] }), []);
});

test('a magic that was recorded as a call, and a tab as spaces, are the same line', () => {
  const code = [
    [1, "x = get_ipython().run_line_magic('time', 'f()')"],
    [2, 'if x:   # so']
  ];
  const lines = { ...LINES, code, rows: [[1, 1, 1, 1]] };
  assert.equal(linesIn(['x = %time f()', 'if x:\t# so'], lines).length, 1);
});

/** The lines at which marks stand after a change, by what stands there. */
function after(changes) {
  const doc = WRITTEN.join('\n');
  let state = EditorState.create({ doc, extensions: [marked] });
  const marks = [2, 4, 5].map(line => ({ line, draw: () => null }));
  state = state.update({ effects: putting(state.doc, marks) }).state;
  state = state.update({ changes: changes(state.doc) }).state;
  const lines = [];
  state.field(marked).between(0, state.doc.length, from => {
    lines.push(state.doc.lineAt(from).number);
  });
  return lines;
}

test('marks move with their lines', () => {
  assert.deepEqual(
    after(() => ({ from: 0, insert: '# new\n' })),
    [3, 5, 6]
  );
  assert.deepEqual(
    after(doc => ({ from: doc.line(4).from, insert: '    model(x)\n' })),
    [2, 5, 6]
  );
  assert.deepEqual(
    after(doc => ({ from: doc.line(3).to, insert: '\n' })),
    [2, 5, 6]
  );
});

test('a line that is edited has no mark any more', () => {
  assert.deepEqual(
    after(doc => ({ from: doc.line(2).to, insert: '.cuda()' })),
    [4, 5]
  );
  assert.deepEqual(
    after(doc => ({ from: doc.line(2).from, insert: '# ' })),
    [4, 5]
  );
  assert.deepEqual(
    after(doc => ({ from: doc.line(3).to, to: doc.line(4).from })),
    [2, 4]
  );
});

test('a line that is deleted leaves its mark to no other that says the same', () => {
  assert.deepEqual(
    after(doc => ({ from: doc.line(4).from, to: doc.line(5).from })),
    [2, 4]
  );
  assert.deepEqual(
    after(doc => ({ from: doc.line(3).to, to: doc.line(4).to })),
    [2, 4]
  );
  assert.deepEqual(
    after(doc => ({ from: 0, to: doc.length, insert: WRITTEN.join('\n') })),
    []
  );
});
