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

function bokehOf(embed_item) {
  return {
    version: '3',
    documents: [new Document('of the page')],
    embed: { embed_item },
    Models: { get: () => ({ prototype: { default_view: class {} } }) }
  };
}

const settled = () => new Promise(resolve => setImmediate(resolve));

test('an explorer that goes while BokehJS draws leaves no document', async () => {
  const bokeh = bokehOf(item => {
    bokeh.documents.push(new Document(item.doc.title));
    return new Promise(() => {}); // taken out of the page, it waits for ever
  });
  const pictures = new Pictures([['one', '{"doc": {}}']], () => Promise.resolve(bokeh));
  void pictures.draw('one', document.createElement('div'));
  void pictures.draw('one', document.createElement('div'));
  await settled();
  const [other, first, second] = bokeh.documents;
  pictures.dispose();
  await settled();
  assert.deepEqual(bokeh.documents, [other]);
  assert.ok(first.cleared && second.cleared && !other.cleared);
});

test('a document that BokehJS makes after its explorer went is let go with the next', async () => {
  const asked = [];
  const bokeh = bokehOf(item => {
    asked.push(item.doc.title);
    return new Promise(() => {});
  });
  const draw = () => {
    const pictures = new Pictures([['one', '{"doc": {}}']], () => Promise.resolve(bokeh));
    pictures.draw('one', document.createElement('div')).catch(() => undefined);
    return pictures;
  };
  draw().dispose(); // nobody was asked yet
  await settled();
  assert.deepEqual(asked, []);
  const gone = draw();
  await settled();
  gone.dispose();
  await settled();
  const late = new Document(asked[0]);
  bokeh.documents.push(late);
  draw();
  await settled();
  assert.deepEqual(
    bokeh.documents.map(one => one.title()),
    ['of the page']
  );
  assert.ok(late.cleared);
});
