// Follows a run that `haiprof view` serves.
import type { App } from "./app.ts";

export function follow(app: App): void {
  void app;
}
