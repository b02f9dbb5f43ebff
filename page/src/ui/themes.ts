// Light and dark: as the system has it, unless the reader chose.
import type { Theme } from "../common/colours.ts";

const KEY = "haiprof-theme";
type Choice = "system" | Theme;

export class Themes {
  private choice: Choice = "system";
  private dark = matchMedia("(prefers-color-scheme: dark)");

  constructor(private changed: () => void) {
    try {
      const kept = localStorage.getItem(KEY);
      if (kept === "light" || kept === "dark") this.choice = kept;
    } catch {
      // A page from disk may have no storage.
    }
    this.apply();
    this.dark.addEventListener("change", () => this.changed());
  }

  get now(): Theme {
    return this.choice === "system" ? (this.dark.matches ? "dark" : "light") : this.choice;
  }

  /** Returns what to say of it. */
  next(): string {
    const order: Choice[] = ["system", this.dark.matches ? "light" : "dark", this.dark.matches ? "dark" : "light"];
    this.choice = order[(order.indexOf(this.choice) + 1) % order.length];
    try {
      localStorage.setItem(KEY, this.choice);
    } catch {
      // Then it holds until the page is closed.
    }
    this.apply();
    this.changed();
    return this.choice === "system" ? "colours as the system" : `${this.choice} colours`;
  }

  private apply(): void {
    document.documentElement.dataset.theme = this.choice;
  }
}
