// The keyboard.
import type { App } from "../app.ts";
import { axisKey } from "./hands.ts";

export class Keys {
  constructor(private app: App) {
    addEventListener("keydown", (event) => this.pressed(event));
  }

  private pressed(event: KeyboardEvent): void {
    const { app } = this;
    if (event.ctrlKey || event.metaKey || event.altKey || event.defaultPrevented) return;
    if (document.querySelector("dialog[open]")) return;
    const target = event.target as HTMLElement;
    const writes = target.matches("input, textarea, select");
    if (writes) {
      if (event.key === "Escape") target.blur();
      return;
    }
    if (this.ofPage(event) || this.ofFigure(event, target)) event.preventDefault();
    void app;
  }

  private ofPage(event: KeyboardEvent): boolean {
    const { app } = this;
    const { key } = event;
    if (/^[1-9]$/.test(key)) app.chooseTab(Number(key) - 1);
    else if (key === "/") app.search.open();
    else if (key === "?") app.help.showModal();
    else if (key === "t") app.say(app.themes.next());
    else if (key === "r") app.chooseRank(1);
    else if (key === "R") app.chooseRank(-1);
    else if (key === "Escape") app.escape();
    else return false;
    return true;
  }

  private ofFigure(event: KeyboardEvent, target: HTMLElement): boolean {
    const figure = this.app.active()?.figure;
    if (!figure) return false;
    const focused = target.getAttribute("role") === "application";
    // Arrows and Enter belong to what has the focus: they scroll, and follow links, elsewhere.
    if (!focused && (event.key.startsWith("Arrow") || event.key === "Enter" || event.key === " ")) return false;
    const { axis } = figure;
    if (event.key === "m" && axis) {
      this.app.mark(axis);
      return true;
    }
    const done = figure.key ? figure.key(event) : axis !== undefined && axisKey(axis, event.key);
    if (done && axis && "[]".includes(event.key)) this.app.selected(axis);
    return done;
  }
}
