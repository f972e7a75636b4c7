// Writes pickles of plain data for the tests of their reader: protocol 2, as Python's would be read.

const bytes = (...codes) => Uint8Array.from(codes.flat());
const text = value => [...new TextEncoder().encode(value)];
const uint32 = value => [0, 8, 16, 24].map(shift => (value >>> shift) & 255);

/** An integer of 8 bytes: 0x8a, its length, the bytes. */
function long(value) {
  const found = [];
  for (let left = BigInt(value), i = 0; i < 8; i++, left >>= 8n) {
    found.push(Number(left & 255n));
  }
  return [0x8a, 8, ...found];
}

function written(value) {
  if (value === null) {
    return [0x4e];
  }
  if (typeof value === 'boolean') {
    return [value ? 0x88 : 0x89];
  }
  if (typeof value === 'number') {
    return long(value);
  }
  if (typeof value === 'string') {
    const encoded = text(value);
    return [0x58, ...uint32(encoded.length), ...encoded];
  }
  if (Array.isArray(value)) {
    return [0x5d, 0x28, ...value.flatMap(written), 0x65];
  }
  return [0x7d, 0x28, ...Object.entries(value).flat().flatMap(written), 0x75];
}

/** A whole pickle of one value. */
export const pickled = value => bytes([0x80, 2], written(value), 0x2e);

/** A pickle of any opcodes. */
export const opcodes = (...codes) => bytes([0x80, 4], codes.flat(), 0x2e);

export { text, uint32 };
