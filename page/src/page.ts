// Starts the page on the document beside it.
import type { Document } from "./document.ts";
import { Blobs } from "./common/columns.ts";
import { App } from "./app.ts";
import { follow } from "./live.ts";
import { h } from "./ui/dom.ts";

const loaded = new Promise<void>((done) => {
  if (document.readyState !== "loading") done();
  else document.addEventListener("DOMContentLoaded", () => done());
});

/** The blobs come after the script in the file; one that nothing follows may have only begun to arrive. */
async function blob(k: number): Promise<string> {
  if (!document.getElementById(`blob-${k}`)?.nextElementSibling) await loaded;
  const element = document.getElementById(`blob-${k}`);
  if (!element) throw new Error(`blob ${k} is not in this file`);
  const text = element.textContent ?? "";
  element.remove();
  return text;
}

const root = document.getElementById("page")!;
const source = document.getElementById("document");
try {
  if (!source) throw new Error("this file is the template of a report, without one");
  const content = JSON.parse(source.textContent ?? "") as Document;
  source.remove();
  if (content.format !== 1) throw new Error(`this page cannot read format ${String(content.format)}`);
  const app = new App(root, content, new Blobs(blob));
  if (document.documentElement.dataset.live) follow(app);
} catch (error) {
  root.replaceChildren(h("p.empty", {}, `This report cannot be shown: ${error instanceof Error ? error.message : String(error)}`));
}
