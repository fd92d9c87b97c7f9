//! Columns under a header, as the `kafka-*.sh` tools print them.

/// Rows of as many cells as the header; every column but the last is as wide as its longest cell.
pub(crate) fn columns<const N: usize>(header: [&str; N], rows: &[[String; N]]) -> String {
    let mut widths = header.map(|cell| cell.chars().count());
    for row in rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let mut lines = Vec::with_capacity(rows.len() + 1);
    lines.push(line(&header, &widths));
    lines.extend(rows.iter().map(|row| line(row, &widths)));
    lines.join("\n")
}

fn line<S: AsRef<str>>(cells: &[S], widths: &[usize]) -> String {
    let padded: Vec<String> =
        cells.iter().zip(widths).map(|(cell, width)| format!("{:<width$}", cell.as_ref())).collect();
    padded.join(" ").trim_end().to_owned()
}

/// A table too long to be held: rows come in parts, and columns grow where a later part needs it.
pub(crate) struct Growing<const N: usize> {
    header: Option<[&'static str; N]>,
    widths: [usize; N],
}

impl<const N: usize> Growing<N> {
    /// No rows yet; the header goes out with the first part.
    pub(crate) fn new(header: [&'static str; N]) -> Self {
        Growing { header: Some(header), widths: header.map(|cell| cell.chars().count()) }
    }

    /// The lines of a part, without a newline behind the last.
    pub(crate) fn add(&mut self, rows: &[[String; N]]) -> String {
        for row in rows {
            for (width, cell) in self.widths.iter_mut().zip(row) {
                *width = (*width).max(cell.chars().count());
            }
        }
        let header = self.header.take().map(|header| line(&header, &self.widths));
        let lines: Vec<String> =
            header.into_iter().chain(rows.iter().map(|row| line(row, &self.widths))).collect();
        lines.join("\n")
    }
}

/// A cell; `-` for nothing, as `kafka-consumer-groups` has it.
pub(crate) fn or_dash(cell: Option<impl ToString>) -> String {
    cell.map_or_else(|| "-".to_owned(), |cell| cell.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_their_longest_cell() {
        let rows = [["g".to_owned(), or_dash(Some(12))], ["longer".to_owned(), or_dash(None::<i64>)]];
        assert_eq!(columns(["GROUP", "LAG"], &rows), "GROUP  LAG\ng      12\nlonger -");
    }

    #[test]
    fn columns_grow_from_part_to_part() {
        let mut table = Growing::new(["KEY", "N"]);
        let row = |key: &str, n: &str| [key.to_owned(), n.to_owned()];
        assert_eq!(table.add(&[row("a", "1")]), "KEY N\na   1");
        assert_eq!(table.add(&[row("long", "2"), row("b", "3")]), "long 2\nb    3");
    }
}
