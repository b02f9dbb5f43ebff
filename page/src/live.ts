// Follows a run that `haiprof view` serves.
import { Blobs } from "./common/columns.ts";
import type { Document } from "./document.ts";
import type { App } from "./app.ts";
import { h } from "./ui/dom.ts";

const MOST_SECONDS = 60;

export function follow(app: App): void {
  const state = h("span.live", { role: "status" });
  const first = app.document.live;
  if (!first) return;
  let { every, version } = first;
  let wait = every;
  let gone = false;
  app.status(state);
  const say = (text: string): void => {
    if (state.textContent !== text) state.textContent = text;
  };
  say("live");

  async function ask(): Promise<boolean> {
    const answer = await fetch(`document?since=${encodeURIComponent(version)}`, { cache: "no-store" });
    if (answer.status === 204) return true;
    if (!answer.ok) throw new Error(answer.statusText);
    const { document, blobs } = (await answer.json()) as { document: Document; blobs: string[] };
    app.renew(document, new Blobs((k) => Promise.resolve(blobs[k])));
    app.status(state);
    if (!document.live) return false;
    ({ every, version } = document.live);
    return true;
  }

  async function run(): Promise<void> {
    // A page that nobody sees asks for nothing.
    if (document.hidden) {
      document.addEventListener("visibilitychange", () => void run(), { once: true });
      return;
    }
    try {
      if (!(await ask())) {
        say("ended");
        return;
      }
      [wait, gone] = [every, false];
      say("live");
    } catch {
      if (!gone) app.say("The server does not answer; what is shown stays.");
      gone = true;
      wait = Math.min(MOST_SECONDS, wait * 2);
      say("not answering");
    }
    setTimeout(() => void run(), 1000 * wait);
  }

  setTimeout(() => void run(), 1000 * every);
}
