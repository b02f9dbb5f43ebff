// Tables as text that a spreadsheet reads.

export type Cell = string | number | null | undefined;

function field(cell: Cell): string {
  if (cell === null || cell === undefined || cell !== cell) return "";
  if (typeof cell === "number") return String(cell);
  // A spreadsheet would run what begins like a formula.
  const text = /^[=+\-@\t\r]/.test(cell) ? `'${cell}` : cell;
  return /[",\n\r]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
}

export function csv(rows: Cell[][]): string {
  return rows.map((row) => row.map(field).join(",")).join("\n") + "\n";
}
