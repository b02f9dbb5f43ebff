// Reads the columns of a document: base64 of deflate, inflated when first asked for.
import type { Column } from "../document.ts";

const BYTES = { f32: 4, f64: 8, i32: 4, u32: 4, u16: 2, u8: 1 } as const;

/** The items as they lie in the blob. */
function items(column: Column, bytes: Uint8Array): Float32Array | Float64Array | Int32Array | Uint32Array | Uint16Array | Uint8Array {
  const at = bytes.byteOffset + column.at;
  if (column.at < 0 || column.n < 0 || column.at + column.n * BYTES[column.type] > bytes.byteLength) {
    throw new RangeError(`blob ${column.blob} ends before a column of it`);
  }
  switch (column.type) {
    case "f32": return new Float32Array(bytes.buffer, at, column.n);
    case "f64": return new Float64Array(bytes.buffer, at, column.n);
    case "i32": return new Int32Array(bytes.buffer, at, column.n);
    case "u32": return new Uint32Array(bytes.buffer, at, column.n);
    case "u16": return new Uint16Array(bytes.buffer, at, column.n);
    case "u8": return new Uint8Array(bytes.buffer, at, column.n);
    default: throw new TypeError(`no such type of column: ${String(column.type)}`);
  }
}

/** What an item of an integer type is when there is no value. */
const ABSENT: Partial<Record<Column["type"], number>> = { i32: -(2 ** 31), u32: 2 ** 32 - 1, u16: 65535, u8: 255 };

/** The values of a column; NaN where there is none. */
export function values(column: Column, bytes: Uint8Array): Float64Array {
  const packed = items(column, bytes);
  const out = new Float64Array(column.n);
  const { scale = 1, offset = 0 } = column;
  const absent = ABSENT[column.type];
  let sum = 0;
  for (let i = 0; i < out.length; i++) {
    const item = packed[i];
    if (item === absent || item !== item) {
      out[i] = NaN;
    } else {
      sum = column.delta ? sum + item : item;
      out[i] = sum * scale + offset;
    }
  }
  return out;
}

/** Indices (of names, of parents): as they are, without a copy as doubles. */
export function indices(column: Column, bytes: Uint8Array): ArrayLike<number> {
  return column.delta || column.scale !== undefined || column.offset !== undefined
    ? values(column, bytes)
    : items(column, bytes);
}

export function fromBase64(text: string): Uint8Array<ArrayBuffer> {
  const binary = atob(text.trim());
  const bytes = new Uint8Array(binary.length);
  for (let i = 0; i < binary.length; i++) bytes[i] = binary.charCodeAt(i);
  return bytes;
}

export async function inflated(packed: Uint8Array<ArrayBuffer>): Promise<Uint8Array> {
  // Not through Blob and Response: a browser may keep a large Blob in a file, and have none.
  const { readable, writable } = new DecompressionStream("deflate-raw");
  const writer = writable.getWriter();
  const written = writer.write(packed).then(() => writer.close());
  const pieces: Uint8Array[] = [];
  let size = 0;
  const reader = readable.getReader();
  const read = async (): Promise<void> => {
    for (let piece = await reader.read(); !piece.done; piece = await reader.read()) {
      pieces.push(piece.value);
      size += piece.value.length;
    }
  };
  await Promise.all([written, read()]);
  const whole = new Uint8Array(size);
  let at = 0;
  for (const piece of pieces) {
    whole.set(piece, at);
    at += piece.length;
  }
  return whole;
}

/** The blobs of a page, each inflated once. */
export class Blobs {
  private known = new Map<number, Promise<Uint8Array>>();

  /** `text` returns the base64 of a blob. */
  constructor(private text: (blob: number) => Promise<string>) {}

  bytes(blob: number): Promise<Uint8Array> {
    let found = this.known.get(blob);
    if (!found) {
      found = this.text(blob).then(fromBase64).then(inflated);
      this.known.set(blob, found);
    }
    return found;
  }

  async values(column: Column): Promise<Float64Array> {
    return values(column, await this.bytes(column.blob));
  }

  async indices(column: Column): Promise<ArrayLike<number>> {
    return indices(column, await this.bytes(column.blob));
  }
}
