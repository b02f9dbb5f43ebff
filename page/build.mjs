// Builds the template of the report: one HTML file with style, script and licences inside.
//   node build.mjs --made-from DIGEST --out FILE   writes it; DIGEST: of the sources, so that one sees what it is of
//   node build.mjs --tests                         bundles tests/*.test.ts and runs them in node
// The same sources give the same bytes.
import { createHash } from "node:crypto";
import { spawnSync } from "node:child_process";
import { mkdtempSync, mkdirSync, readdirSync, readFileSync, renameSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";
import { build, transform } from "esbuild";

const here = dirname(fileURLToPath(import.meta.url));
const read = (...parts) => readFileSync(join(here, ...parts), "utf8");

async function script() {
  const result = await build({
    entryPoints: [join(here, "src", "page.ts")],
    absWorkingDir: here,
    bundle: true,
    minify: true,
    format: "iife",
    target: ["chrome100", "firefox113", "safari16.4"],
    charset: "utf8",
    legalComments: "none",
    write: false,
  });
  // Nothing in the script may look like its end to a browser that reads the page.
  return result.outputFiles[0].text.trim().replaceAll("</script", "<\\/script").replaceAll("<!--", "<\\!--");
}

async function style() {
  const text = read("node_modules", "uplot", "dist", "uPlot.min.css") + read("src", "page.css");
  return (await transform(text, { loader: "css", minify: true })).code.trim();
}

const hashed = (text) => `'sha256-${createHash("sha256").update(text).digest("base64")}'`;

async function template(digest) {
  const [code, css] = [await script(), await style()];
  const rules = `default-src 'none'; script-src ${hashed(code)}; style-src ${hashed(css)}; img-src data: blob:; connect-src 'self'; base-uri 'none'; form-action 'none'`;
  const version = JSON.parse(read("node_modules", "uplot", "package.json")).version;
  const licence = `uPlot ${version}, https://github.com/leeoniya/uPlot\n${read("node_modules", "uplot", "LICENSE").trim()}`;
  const parts = { rules, style: css, script: code, licence, digest };
  return read("src", "page.html").replace(/\{\{(\w+)\}\}/g, (_, name) => parts[name]);
}

/** Writes a file whole: a build that is stopped leaves none that looks finished. */
function write(path, text) {
  mkdirSync(dirname(path), { recursive: true });
  const unfinished = `${path}.${process.pid}`;
  writeFileSync(unfinished, text);
  renameSync(unfinished, path);
}

async function tests() {
  const folder = mkdtempSync(join(tmpdir(), "haiprof-page-"));
  const names = readdirSync(join(here, "tests")).filter((name) => name.endsWith(".test.ts"));
  try {
    await build({
      entryPoints: names.map((name) => join(here, "tests", name)),
      bundle: true,
      format: "esm",
      platform: "node",
      outExtension: { ".js": ".mjs" },
      outdir: folder,
    });
    const files = names.map((name) => join(folder, name.replace(/\.ts$/, ".mjs")));
    return spawnSync(process.execPath, ["--test", ...files], { stdio: "inherit" }).status ?? 1;
  } finally {
    rmSync(folder, { recursive: true });
  }
}

const [what, digest, , out] = process.argv.slice(2);
if (what === "--tests") {
  process.exitCode = await tests();
} else {
  write(out, await template(digest));
}
