// The keys, as `?` shows them.
import { h } from "./dom.ts";

const KEYS: [string, string][] = [
  ["1 … 9", "tabs, in their order"],
  ["/", "search everything"],
  ["w  s", "zoom in and out around the cursor"],
  ["a  d", "pan to the left and to the right"],
  ["wheel", "zoom; with Shift: pan. In a small chart with Ctrl, or after a click into it"],
  ["drag", "select a range: its statistics are below the page. With Shift: pan"],
  ["[  ]", "begin and end a range at the cursor"],
  ["f", "zoom to the range"],
  ["0, double click", "show all"],
  ["← → ↑ ↓", "move the cursor in the figure that has the focus"],
  ["click, Space", "pin a value or an item; a second pin compares. In heat map and flame graph with Alt"],
  ["click, Enter", "heat map: go to that step; flame graph: zoom to that frame (Backspace: to its caller)"],
  ["m", "mark the time at the cursor; again there: remove it"],
  [",  .", "step before, next step (in lanes)"],
  ["n  p", "next and previous of what is searched for in lanes"],
  ["r  R", "next and previous rank"],
  ["t", "light, dark, or as the system"],
  ["Esc", "close, unpin, unselect, show all: one after the other"],
  ["?", "these keys"],
];

export function help(): HTMLDialogElement {
  const dialog = h<HTMLDialogElement>("dialog.help", { "aria-label": "Keys" },
    h("h2", {}, "Keys"),
    h("dl", {}, ...KEYS.flatMap(([keys, what]) => [h("dt", {}, ...keys.split("  ").map((key) => h("kbd", {}, key))), h("dd", {}, what)])),
    h("p.note", {}, "The address of the page holds the tab, the rank, the step and the range: send it together with the file."),
    h("button", { type: "button", onclick: () => dialog.close() }, "Close"));
  dialog.addEventListener("click", (event) => event.target === dialog && dialog.close());
  return dialog;
}
