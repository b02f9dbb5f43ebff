// Elements. Text of a run only ever becomes a text node.

type Child = Node | string | null | undefined | false;
type Properties = Record<string, string | number | boolean | null | undefined | ((event: never) => void)>;

/** h("button.small", { title: "…", onclick }, "Text") */
export function h<T extends HTMLElement = HTMLElement>(what: string, properties: Properties = {}, ...children: Child[]): T {
  const [tag, ...classes] = what.split(".");
  const element = document.createElement(tag || "div");
  if (classes.length) element.className = classes.join(" ");
  for (const [name, value] of Object.entries(properties)) {
    if (typeof value === "function") element.addEventListener(name.slice(2), value as EventListener);
    else if (value === true) element.setAttribute(name, "");
    else if (value !== undefined && value !== null && value !== false) element.setAttribute(name, String(value));
  }
  for (const child of children) if (child) element.append(child);
  return element as T;
}

export function swatch(colour: string): HTMLElement {
  const element = h("span.swatch", { "aria-hidden": "true" });
  element.style.background = colour;
  return element;
}

/** A colour or size of the style sheet. */
export const styled = (name: string): string => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

/** Runs once before the next frame, however often it is asked for. */
export function eachFrame(run: () => void): () => void {
  let asked = false;
  return () => {
    if (asked) return;
    asked = true;
    requestAnimationFrame(() => {
      asked = false;
      run();
    });
  };
}

export function download(name: string, content: Blob): void {
  const link = h<HTMLAnchorElement>("a", { href: URL.createObjectURL(content), download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}

/** False if the browser does not allow it. */
export async function copied(text: string): Promise<boolean> {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    // Pages from disk may have no clipboard; this older way needs none.
    const area = h<HTMLTextAreaElement>("textarea", { "aria-hidden": "true", class: "outside" });
    area.value = text;
    document.body.append(area);
    area.select();
    const done = document.execCommand("copy");
    area.remove();
    return done;
  }
}
