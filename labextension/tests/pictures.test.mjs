// What BokehJS keeps of a picture: nothing, whenever the explorer goes.

import assert from 'node:assert/strict';
import test from 'node:test';

import { Pictures } from '../lib/explorer/figures.js';

class Document {
  constructor(title) {
    this._title = title;
    this.cleared = false;
  }
  title() {
    return this._title;
  }
  clear() {
    this.cleared = true;
  }
}

globalThis.document = {
  createElement: () => ({ setAttribute() {}, append() {}, replaceChildren() {}, dataset: {} })
};

test('an explorer that goes while BokehJS draws leaves no document', async () => {
  const other = new Document('of the page');
  const bokeh = {
    version: '3',
    documents: [other],
    embed: {
      embed_item(item) {
        bokeh.documents.push(new Document(item.doc.title));
        return new Promise(() => {}); // taken out of the page, it waits for ever
      }
    },
    Models: { get: () => ({ prototype: { default_view: class {} } }) }
  };
  const pictures = new Pictures([['one', '{"doc": {}}']], () => Promise.resolve(bokeh));
  void pictures.draw('one', document.createElement('div'));
  void pictures.draw('one', document.createElement('div'));
  await new Promise(resolve => setImmediate(resolve));
  assert.equal(bokeh.documents.length, 3);
  const [, first, second] = bokeh.documents;
  pictures.dispose();
  assert.deepEqual(bokeh.documents, [other]);
  assert.ok(first.cleared && second.cleared && !other.cleared);
});
