// Pointer, wheel and touch on a figure with an axis.
import type { Axis } from "./axis.ts";

export interface Hands {
  axis: Axis;
  /** Left edge and width of the plot in pixels of the element. */
  plot(): { left: number; width: number };
  /** Whether a plain wheel zooms; else only with Ctrl, or once the figure has the focus. */
  wheel?: boolean;
  /** Dragging selects a range; else it pans. */
  selects?: boolean;
  click?(x: number, y: number, event: PointerEvent): void;
  move?(x: number, y: number): void;
  leave?(): void;
  twice?(x: number, y: number): boolean;
  selected?(): void;
}

const CLICK_PIXELS = 4;

export function handle(element: HTMLElement, hands: Hands): void {
  const { axis } = hands;
  const xOf = (event: MouseEvent): number => event.clientX - element.getBoundingClientRect().left;
  const yOf = (event: MouseEvent): number => event.clientY - element.getBoundingClientRect().top;
  const valueAt = (x: number): number => {
    const { left, width } = hands.plot();
    const [low, high] = axis.view;
    return low + ((x - left) / Math.max(1, width)) * (high - low);
  };
  const inPlot = (x: number): boolean => x >= hands.plot().left;

  element.addEventListener("wheel", (event) => {
    if (!inPlot(xOf(event))) return;
    const sideways = Math.abs(event.deltaX) > Math.abs(event.deltaY);
    const focused = element.contains(document.activeElement) || element === document.activeElement;
    if (sideways || event.shiftKey) {
      axis.pan(((sideways ? event.deltaX : event.deltaY) / hands.plot().width) * 0.7);
    } else if (hands.wheel || event.ctrlKey || focused) {
      const lines = event.deltaMode === 1 ? 24 : 1;
      const by = Math.max(-120, Math.min(120, event.deltaY * lines));
      axis.zoom(Math.exp(by * 0.0022), valueAt(xOf(event)));
    } else {
      return;
    }
    event.preventDefault();
  }, { passive: false });

  const touches = new Map<number, number>();
  let start: { x: number; y: number; value: number; pans: boolean; view: [number, number] } | undefined;
  let dragged = false;

  element.addEventListener("pointerdown", (event) => {
    const x = xOf(event);
    if (event.button > 1 || (!inPlot(x) && event.button === 0)) {
      if (event.button === 0) start = { x, y: yOf(event), value: NaN, pans: false, view: [...axis.view] };
      dragged = false;
      return;
    }
    if (event.pointerType === "touch") touches.set(event.pointerId, x);
    const pans = !hands.selects || event.shiftKey || event.button === 1 || event.pointerType === "touch";
    start = { x, y: yOf(event), value: valueAt(x), pans, view: [...axis.view] };
    dragged = false;
    if (event.button === 1) event.preventDefault();
  });

  element.addEventListener("pointermove", (event) => {
    const x = xOf(event);
    if (touches.size === 2 && touches.has(event.pointerId)) {
      pinch(event.pointerId, x);
      return;
    }
    if (start && event.buttons && start.value === start.value) {
      if (!dragged && Math.abs(x - start.x) < CLICK_PIXELS) return;
      if (!dragged) element.setPointerCapture(event.pointerId);
      dragged = true;
      if (start.pans) {
        const { width } = hands.plot();
        const by = ((start.x - x) / Math.max(1, width)) * (start.view[1] - start.view[0]);
        axis.show(start.view[0] + by, start.view[1] + by);
      } else {
        axis.select([start.value, valueAt(x)]);
      }
    }
    if (inPlot(x)) axis.point(valueAt(x));
    hands.move?.(x, yOf(event));
  });

  function pinch(id: number, x: number): void {
    const ids = [...touches.keys()];
    const other = touches.get(ids[0] === id ? ids[1] : ids[0])!;
    const before = Math.abs(touches.get(id)! - other);
    const now = Math.abs(x - other);
    touches.set(id, x);
    dragged = true;
    if (before > 4 && now > 4) axis.zoom(before / now, valueAt((x + other) / 2));
  }

  const finish = (event: PointerEvent): void => {
    touches.delete(event.pointerId);
    if (start && !dragged && event.type === "pointerup" && event.button === 0) {
      hands.click?.(xOf(event), yOf(event), event);
    } else if (start && dragged && !start.pans) {
      hands.selected?.();
    }
    start = undefined;
  };
  element.addEventListener("pointerup", finish);
  element.addEventListener("pointercancel", finish);
  element.addEventListener("pointerleave", () => {
    axis.point(undefined);
    hands.leave?.();
  });
  element.addEventListener("dblclick", (event) => {
    if (!inPlot(xOf(event)) || hands.twice?.(xOf(event), yOf(event))) return;
    const value = valueAt(xOf(event));
    const { selection } = axis.shared;
    if (selection && value >= selection[0] && value <= selection[1]) axis.showSelection();
    else axis.all();
  });
}

/** The keys of an axis: true if the key was one of them. */
export function axisKey(axis: Axis, key: string): boolean {
  const [low, high] = axis.view;
  const around = axis.cursor ?? (low + high) / 2;
  switch (key) {
    case "w": axis.zoom(0.7, around); return true;
    case "s": axis.zoom(1 / 0.7, around); return true;
    case "a": axis.pan(-0.15); return true;
    case "d": axis.pan(0.15); return true;
    case "f": return axis.showSelection();
    case "0": axis.all(); return true;
    case "[": axis.select([around, axis.shared.selection?.[1] ?? high]); return true;
    case "]": axis.select([axis.shared.selection?.[0] ?? low, around]); return true;
    default: return false;
  }
}
