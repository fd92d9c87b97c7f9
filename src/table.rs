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
}
