//! Reads numbers from a page of metrics.

/// The sum of all series of a family that have all of these labels, each as it stands on the page;
/// 0 where there is none.
pub fn sum(page: &str, family: &str, labels: &[&str]) -> f64 {
    let series = page.lines().filter_map(|line| {
        let rest = line.strip_prefix(family).filter(|rest| rest.starts_with([' ', '{']))?;
        let (shown, value) = rest.rsplit_once(' ')?;
        labels.iter().all(|label| shown.contains(label)).then(|| value.parse::<f64>().ok())?
    });
    series.sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn series_are_summed_by_family_and_labels() {
        let page = "# TYPE a_total counter\na_total{end=\"x\",n=\"1\"} 2.0\n\
                    a_total{end=\"y\",n=\"1\"} 3\na_total_more 9\nb 7\n";
        assert_eq!(sum(page, "a_total", &[]), 5.0);
        assert_eq!(sum(page, "a_total", &["end=\"y\"", "n=\"1\""]), 3.0);
        assert_eq!(sum(page, "b", &[]), 7.0);
        assert_eq!(sum(page, "c", &[]), 0.0);
    }
}
