// Tables: sort, filter, bars, differences.
import { amount, change } from "../common/numbers.ts";
import type { Column, Place, Table, TableColumn } from "../document.ts";
import { meaning } from "../common/colours.ts";
import { h } from "../ui/dom.ts";
import type { Figure, Made, Page } from "../ui/figure.ts";
import { placeLink } from "./findings.ts";

type Values = ArrayLike<number | string | null>;
interface Read {
  column: TableColumn;
  values: Values;
  before?: ArrayLike<number | null>;
  numeric: boolean;
  most: number;
}

const isColumn = (values: unknown): values is Column => !Array.isArray(values);

async function read(page: Page, column: TableColumn): Promise<Read> {
  const values: Values = isColumn(column.values) ? await page.blobs.values(column.values) : column.values;
  const before = column.before && (isColumn(column.before) ? await page.blobs.values(column.before) : column.before);
  let numeric = isColumn(column.values) || column.number === true;
  let most = 0;
  for (let i = 0; i < values.length; i++) {
    const value = values[i];
    if (typeof value !== "number") continue;
    numeric = true;
    if (Math.abs(value) > most) most = Math.abs(value);
  }
  return { column, values, before, numeric, most };
}

const AT_ONCE = 100;

export async function table({ section, page, body }: Made<Table>): Promise<Figure> {
  const columns = await Promise.all(section.columns.map((column) => read(page, column)));
  let sorted = -1;
  let ascends = false;
  let wanted = "";
  let shown = AT_ONCE;
  let order: number[] = [];

  const filter = h<HTMLInputElement>("input", {
    type: "search", placeholder: "filter", "aria-label": `Filter ${section.title}`,
    oninput: () => { wanted = filter.value.toLowerCase(); shown = AT_ONCE; arrange(); },
  });
  const count = h("span.muted", { "aria-live": "polite" });
  const rows = h("tbody");
  const heads = columns.map((read, k) => {
    const button = h<HTMLButtonElement>("button", { type: "button", title: read.column.help ?? "Sort", onclick: () => sort(k) }, read.column.name);
    return h(`th${read.numeric ? ".number" : ""}`, { scope: "col" }, button);
  });
  const more = h<HTMLButtonElement>("button.more", { type: "button", onclick: () => { shown += 10 * AT_ONCE; fill(); } });
  const tools = section.rows > 8 ? h("div.tabletools", {}, filter, count) : null;
  body.append(
    ...(tools ? [tools] : []),
    h("div.scrolls", { tabindex: 0, role: "region", "aria-label": section.title }, h("table", {}, h("thead", {}, h("tr", {}, ...heads)), rows)),
    more,
    ...(section.more ? [h("p.note", {}, section.more)] : []),
  );

  function text(read: Read, row: number): string {
    const value = read.values[row];
    if (typeof value === "number" || value === null || value === undefined) return amount(value as number | null, read.column.unit);
    return value;
  }

  function sort(k: number): void {
    ascends = sorted === k ? !ascends : !columns[k].numeric;
    sorted = k;
    heads.forEach((head, i) => {
      if (i === k) head.setAttribute("aria-sort", ascends ? "ascending" : "descending");
      else head.removeAttribute("aria-sort");
    });
    arrange();
  }

  function arrange(): void {
    order = [];
    for (let row = 0; row < section.rows; row++) {
      if (!wanted || columns.some((read) => text(read, row).toLowerCase().includes(wanted))) order.push(row);
    }
    if (sorted >= 0) {
      const { column, numeric } = columns[sorted];
      const values: Values = column.order ?? columns[sorted].values;
      const counts = column.order !== undefined || (numeric && !column.number);
      const sign = ascends ? 1 : -1;
      order.sort((a, b) => {
        const [one, other] = [values[a], values[b]];
        // What is absent comes last either way.
        const [gone, away] = [one === null || one !== one, other === null || other !== other];
        if (gone || away) return Number(gone) - Number(away);
        return sign * (counts ? Number(one) - Number(other) : String(one).localeCompare(String(other), "en", { numeric: true }));
      });
    }
    count.textContent = order.length === section.rows ? `${section.rows} rows` : `${order.length} of ${section.rows} rows`;
    fill();
  }

  function cell(read: Read, row: number): HTMLElement {
    const { column } = read;
    const data = h(`td${read.numeric ? ".number" : ""}`, {}, text(read, row));
    const value = read.values[row];
    const then = read.before?.[row];
    if (typeof value === "number" && typeof then === "number" && then === then) {
      const changed = change(value, then);
      const chance = column.chance?.[row];
      const kind = chance ? "chance" : value > then ? "worse" : "better";
      data.append(h(`span.change.${kind}`, { title: `before: ${amount(then, column.unit)}${chance ? `; ${chance}` : ""}` }, changed));
      if (chance) data.append(h("span.change.chance", {}, chance));
    }
    if (column.bar && typeof value === "number" && value === value && read.most > 0) {
      const bar = h("span.cellbar", { "aria-hidden": "true" });
      bar.style.width = `${(100 * Math.abs(value)) / read.most}%`;
      const colour = column.colour && (meaning(column.colour) ?? column.colour);
      if (colour && CSS.supports("color", colour)) bar.style.background = colour;
      data.append(bar);
    }
    return data;
  }

  function line(row: number): HTMLElement {
    const place: Place | null | undefined = section.places?.[row];
    const cells = columns.map((read) => cell(read, row));
    if (place && cells.length) {
      const label = cells[0].firstChild?.textContent ?? "";
      cells[0].firstChild?.replaceWith(placeLink(page, place, label));
    }
    return h("tr", {}, ...cells);
  }

  function fill(): void {
    rows.replaceChildren(...order.slice(0, shown).map(line));
    more.hidden = order.length <= shown;
    more.textContent = `Show more (${order.length - shown} rows left)`;
  }

  arrange();
  return {
    draw() {},
    rows: () => ({
      head: columns.flatMap(({ column, before }) => {
        const name = column.unit ? `${column.name} (${column.unit})` : column.name;
        return before ? [name, `${name} before`] : [name];
      }),
      rows: order.map((row) => columns.flatMap(({ values, before }) => (before ? [values[row], before[row]] : [values[row]]))),
    }),
    show(place) {
      if (place.find === undefined) return;
      filter.value = place.find;
      wanted = place.find.toLowerCase();
      arrange();
    },
  };
}
