//! The files of the page, embedded in the program.
//!
//! Plain HTML, CSS and JavaScript modules: no build step, no framework, nothing loaded from other hosts. The content
//! security policy allows nothing else: no inline script or style, no other host.

use super::super::message::HttpResponse;

/// The content security policy: the page's own files, nothing inline.
pub(super) const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; \
     connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

const HTML: &str = "text/html; charset=utf-8";
const CSS: &str = "text/css; charset=utf-8";
const SCRIPT: &str = "text/javascript; charset=utf-8";
const SVG: &str = "image/svg+xml";

/// A file: path, content type, text.
type File = (&'static str, &'static str, &'static str);

macro_rules! file {
    ($kind:expr, $name:literal) => {
        (
            concat!("/", $name),
            $kind,
            include_str!(concat!("page/", $name)),
        )
    };
}

/// All files.
const FILES: &[File] = &[
    ("/", HTML, include_str!("page/index.html")),
    file!(SVG, "icon.svg"),
    file!(CSS, "frame.css"),
    file!(CSS, "views.css"),
    file!(CSS, "cluster.css"),
    file!(SCRIPT, "app.js"),
    file!(SCRIPT, "api.js"),
    file!(SCRIPT, "dom.js"),
    file!(SCRIPT, "values.js"),
    file!(SCRIPT, "scale.js"),
    file!(SCRIPT, "line_chart.js"),
    file!(SCRIPT, "server_view.js"),
    file!(SCRIPT, "collection_view.js"),
    file!(SCRIPT, "cluster_view.js"),
    file!(SCRIPT, "buckets_view.js"),
    file!(SCRIPT, "cardinality_view.js"),
    file!(SCRIPT, "health_view.js"),
    file!(SCRIPT, "top_queries.js"),
    file!(SCRIPT, "completion.js"),
    file!(SCRIPT, "saved_queries.js"),
    file!(SCRIPT, "csv.js"),
    file!(SCRIPT, "byte_reader.js"),
    file!(SCRIPT, "thrift.js"),
    file!(SCRIPT, "zstd.js"),
    file!(SCRIPT, "compression.js"),
    file!(SCRIPT, "parquet.js"),
    file!(SCRIPT, "import_preview.js"),
    file!(SCRIPT, "import_view.js"),
    file!(SCRIPT, "demo_data.js"),
    file!(SCRIPT, "query_view.js"),
    file!(SCRIPT, "rollup_view.js"),
    file!(SCRIPT, "result_table.js"),
    file!(SCRIPT, "result_chart.js"),
    file!(SCRIPT, "explain_tree.js"),
];

/// Returns the file at `path`.
pub(super) fn find(path: &str) -> HttpResponse {
    match FILES.iter().find(|(known, _, _)| *known == path) {
        Some((_, kind, text)) => HttpResponse::new("200 OK", kind, *text),
        None => HttpResponse::text(
            "404 Not Found",
            "there is no such file; the web page is at /\n",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_file_in_the_folder_is_served_and_every_import_is_there() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/src/http/web/page");
        for entry in std::fs::read_dir(folder).unwrap() {
            let name = entry.unwrap().file_name().into_string().unwrap();
            let path = if name == "index.html" {
                String::new()
            } else {
                name
            };
            let path = format!("/{path}");
            assert!(FILES.iter().any(|(known, _, _)| *known == path), "{path}");
        }
        for (path, _, text) in FILES {
            for line in text.lines().filter(|line| line.starts_with("import ")) {
                let from = line.split('"').nth(1).unwrap();
                let named = from.replacen('.', "", 1);
                assert!(
                    FILES.iter().any(|(known, _, _)| *known == named),
                    "{path}: {from}"
                );
            }
        }
    }

    #[test]
    fn nothing_is_inline_and_nothing_comes_from_elsewhere() {
        for (path, _, text) in FILES {
            for forbidden in [
                " style=\"",
                "<script>",
                "<style",
                " onclick=",
                "innerHTML",
                "//cdn",
                "eval(",
            ] {
                assert!(!text.contains(forbidden), "{path}: {forbidden}");
            }
        }
    }
}
