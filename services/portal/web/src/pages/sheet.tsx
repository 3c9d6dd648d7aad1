// A table of cells of any content.
import { plain } from "../ansi";
import { Scroll } from "../ui/parts";

export function Sheet({ columns, cells, label }: { columns: string[] | null; cells: (string | null)[][]; label: string }) {
  const width = Math.max(columns?.length ?? 0, ...cells.slice(0, 1000).map((row) => row.length));
  const names = Array.from({ length: width }, (_, at) => columns?.[at] ?? String(at));
  return (
    <Scroll label={label}>
      <table class="table dense sheet">
        <thead><tr><th class="right muted">#</th>{names.map((name) => <th>{name}</th>)}</tr></thead>
        <tbody>
          {cells.map((row, at) => (
            <tr>
              <td class="right muted">{at + 1}</td>
              {names.map((_, column) => {
                const cell = row[column];
                if (cell === null || cell === undefined) return <td class="none">null</td>;
                const shown = plain(cell.length > 2000 ? `${cell.slice(0, 2000)} …` : cell);
                return <td title={cell.length > 40 ? shown : undefined}>{shown}</td>;
              })}
            </tr>
          ))}
        </tbody>
      </table>
    </Scroll>
  );
}
