import assert from "node:assert/strict";
import { deflateRawSync } from "node:zlib";
import { test } from "node:test";
import { Blobs, values } from "../src/common/columns.ts";
import { csv } from "../src/common/csv.ts";
import { fromHash, toHash } from "../src/common/hash.ts";
import { amount, change, seconds, ticks, unbroken, unitName, unitTicks } from "../src/common/numbers.ts";
import { nearest, ofIntervals, ofSamples, quantile } from "../src/common/statistics.ts";
import type { Column } from "../src/document.ts";

const packed = (array: ArrayBufferView): Uint8Array => new Uint8Array(array.buffer);
const column = (type: Column["type"], n: number, how: Partial<Column> = {}): Column => ({ type, blob: 0, at: 0, n, ...how });

test("a column is scaled, shifted and summed up; what is absent stays absent", () => {
  assert.deepEqual([...values(column("u16", 3, { scale: 0.5, offset: 1 }), packed(Uint16Array.of(0, 4, 65535)))], [1, 3, NaN]);
  assert.deepEqual([...values(column("i32", 4, { delta: true, scale: 0.1 }), packed(Int32Array.of(10, -(2 ** 31), 5, -5)))], [1, NaN, 1.5, 1]);
  assert.deepEqual([...values(column("f32", 2), packed(Float32Array.of(NaN, 2)))], [NaN, 2]);
  assert.deepEqual([...values(column("u8", 0), new Uint8Array())], []);
});

test("a column that its blob is too short for is refused", () => {
  assert.throws(() => values(column("f64", 2), new Uint8Array(15)), /blob 0 ends/);
  assert.throws(() => values(column("f64", -1), new Uint8Array(15)), RangeError);
});

test("a blob is inflated once, when its first column is asked for", async () => {
  let asked = 0;
  const text = deflateRawSync(packed(Float64Array.of(1.5, 2.5))).toString("base64");
  const blobs = new Blobs(() => { asked++; return Promise.resolve(text); });
  assert.equal(asked, 0);
  const read = await Promise.all([blobs.values(column("f64", 2)), blobs.values(column("f64", 1, { at: 8 }))]);
  assert.deepEqual(read.map((each) => [...each]), [[1.5, 2.5], [2.5]]);
  assert.equal(asked, 1);
});

test("a blob that is damaged is an error, not an end without one", async () => {
  const text = deflateRawSync(packed(new Float64Array(1000))).subarray(0, 5).toString("base64");
  await assert.rejects(new Blobs(() => Promise.resolve(text)).bytes(0));
});

test("what the hash says is read back from it", () => {
  const spot = { tab: "run", section: "a b&c", rank: 0, step: 17, from: 1.25, to: 2, view: [0.5, 3] as [number, number], marks: [1, 2.5], find: "x=y#z", frame: "f (a.py:3)" };
  assert.deepEqual(fromHash(toHash(spot)), spot);
});

test("a hash of somebody else leaves out what is no number", () => {
  assert.deepEqual(fromHash("#tab=run&rank=abc&from=1e999&to=&view=3~1&marks=~x&step=%00"), { tab: "run" });
  assert.deepEqual(fromHash(""), { tab: "" });
});

test("statistics of samples count what is in the range and has a value", () => {
  const found = ofSamples([0, 1, 2, 3, 4], [5, 1, NaN, 3, 9], 1, 3);
  assert.deepEqual(found, { count: 2, sum: 4, mean: 2, least: 1, most: 3 });
  assert.equal(ofSamples([0, 1], [1, 2], 5, 6).count, 0);
  assert.ok(Number.isNaN(ofSamples([], [], 0, 1).mean));
});

test("statistics of intervals take of each what lies in the range", () => {
  const found = ofIntervals([0, 2, 9, 4], [3, 2, 1, 0], [7, 7, 7, 8], 1, 5);
  assert.deepEqual(found.get(7), { count: 2, sum: 4, mean: 2, least: 2, most: 2 });
  assert.deepEqual(found.get(8), { count: 1, sum: 0, mean: 0, least: 0, most: 0 });
});

test("the nearest sample, before and after", () => {
  assert.deepEqual([nearest([1, 2, 4], 0), nearest([1, 2, 4], 2.9), nearest([1, 2, 4], 3.1), nearest([1, 2, 4], 9), nearest([], 1)], [0, 1, 2, 2, -1]);
});

test("a quantile leaves out what is absent", () => {
  assert.equal(quantile([NaN, 3, 1, 2], 0.5), 2);
  assert.ok(Number.isNaN(quantile([NaN], 0.5)));
});

test("a spreadsheet gets no formula", () => {
  assert.equal(csv([["=1+1", 'a"b', "x,y", null, NaN, -1.5]]), "'=1+1,\"a\"\"b\",\"x,y\",,,-1.5\n");
});

test("numbers are written with units that people read", () => {
  assert.deepEqual([seconds(0.0123), seconds(75), seconds(3723), seconds(-2e-6), seconds(NaN)], ["12.3 ms", "1 min 15 s", "1 h 02 min", "-2 µs", "–"]);
  assert.deepEqual([amount(3 * 2 ** 30, "bytes"), amount(0.256, "ratio"), amount(123456, "tokens/s"), amount(null, "s"), amount(-5, "")], ["3 GiB", "25.6 %", "123 k tokens/s", "–", "−5"]);
  assert.deepEqual([unitName("percent"), unitName("bytes_per_s"), unitName("segments_per_s"), unitName("constructor")], ["%", "B/s", "segments/s", "constructor"]);
  assert.deepEqual([change(11, 10), change(9, 10), change(10, 10), change(1, 0)], ["+10 %", "−10 %", "±0 %", ""]);
});

test("no line ends between a number and its unit", () => {
  const nbsp = "\u00a0";
  assert.equal(unbroken("500 steps, median 9.7 ms: other 0.2 %"), `500 steps, median 9.7${nbsp}ms: other 0.2${nbsp}%`);
  assert.equal(unbroken("4 sockets, 324 MiB"), `4 sockets, 324${nbsp}MiB`);
});

test("ticks are round, within the range and few, also of ranges that are none", () => {
  assert.deepEqual(ticks(0.1, 9.9, 5), [2, 4, 6, 8]);
  assert.deepEqual(unitTicks(0, 3 * 2 ** 20, 3, "bytes"), [0, 2 ** 20, 2 * 2 ** 20, 3 * 2 ** 20]);
  for (const [low, high] of [[1, 1], [2, 1], [NaN, 1], [0, Infinity]]) assert.deepEqual(ticks(low, high, 5), []);
});
