/** Unpacks with what the browser has, and stops at a limit: a few bytes can be packed gigabytes. */

import { FileError } from './refused.js';

export async function inflated(
  bytes: Uint8Array,
  form: CompressionFormat,
  most: number
): Promise<Uint8Array> {
  const stream = new Blob([bytes as Uint8Array<ArrayBuffer>])
    .stream()
    .pipeThrough(new DecompressionStream(form));
  const reader = stream.getReader();
  const parts: Uint8Array<ArrayBuffer>[] = [];
  let size = 0;
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) {
        break;
      }
      size += value.length;
      if (size > most) {
        throw new FileError(`it unpacks to more than ${most.toLocaleString('en-US')} bytes`);
      }
      parts.push(value);
    }
  } catch (error) {
    await reader.cancel().catch(() => undefined);
    throw error instanceof FileError ? error : new FileError('it is packed and cannot be unpacked');
  }
  const whole = new Uint8Array(size);
  let at = 0;
  for (const part of parts) {
    whole.set(part, at);
    at += part.length;
  }
  return whole;
}
