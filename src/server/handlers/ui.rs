//! The web page at `/ui`: static files that are part of the program. They hold no data, so they need no token.

use std::sync::{Arc, LazyLock};

use axum::Router;
use axum::extract::Path;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use sha2::{Digest, Sha256};

use crate::config::checksum::hex;
use crate::server::http::error::Error;
use crate::server::shared::Shared;

/// Page that all other files are loaded from.
const INDEX: &str = "index.html";

/// The page loads and contacts nothing but this server, and no other page may embed it.
const CONTENT_SECURITY_POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; \
    img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// A file of the page.
struct Asset {
    path: &'static str,
    bytes: &'static [u8],
    etag: LazyLock<String>,
}

macro_rules! assets {
    ($($path:literal),* $(,)?) => {
        [$(Asset {
            path: $path,
            bytes: include_bytes!(concat!("../../../assets/ui/", $path)),
            etag: LazyLock::new(|| etag(include_bytes!(concat!("../../../assets/ui/", $path)))),
        }),*]
    };
}

/// All files of `assets/ui`.
#[rustfmt::skip]
static ASSETS: [Asset; ASSET_COUNT] = assets![
    "api.mjs",
    "charts.mjs",
    "controls.css",
    "conversation.mjs",
    "dom.mjs",
    "episode.css",
    "format.mjs",
    "history.mjs",
    "icon.svg",
    "index.html",
    "keyboard.mjs",
    "main.mjs",
    "narrow.css",
    "phase_band.mjs",
    "protocol.mjs",
    "router.mjs",
    "series.mjs",
    "sse.mjs",
    "states.mjs",
    "store.mjs",
    "style.css",
    "table.mjs",
    "text.mjs",
    "theme.css",
    "theme.mjs",
    "token.mjs",
    "token_scale.mjs",
    "token_view.mjs",
    "vendor/uplot/LICENSE",
    "vendor/uplot/uPlot.css",
    "vendor/uplot/uPlot.mjs",
    "views.css",
    "views/engine.mjs",
    "views/episode.mjs",
    "views/episodes.mjs",
    "views/log.mjs",
    "views/overview.mjs",
    "views/runs.mjs",
    "views/tasks.mjs",
    "views/training.mjs",
    "views/view.mjs",
];

const ASSET_COUNT: usize = 41;

/// Returns the routes of the page.
pub fn router() -> Router<Arc<Shared>> {
    Router::new()
        .route("/ui", get(async |headers: HeaderMap| serve(INDEX, &headers)))
        .route(
            "/ui/{*path}",
            get(async |Path(path): Path<String>, headers: HeaderMap| serve(&path, &headers)),
        )
}

/// Returns whether a path belongs to the page.
pub fn is_page(path: &str) -> bool {
    path == "/ui" || path.starts_with("/ui/")
}

fn serve(path: &str, request: &HeaderMap) -> Response {
    let Some(asset) = ASSETS.iter().find(|asset| asset.path == path) else {
        return Error::NoSuchPath(format!("/ui/{path}")).into_response();
    };
    let etag = asset.etag.as_str();
    let headers = [
        (header::CONTENT_TYPE, content_type(asset.path)),
        (header::ETAG, etag),
        // The browser asks each time, so that a new version of the program is seen at once.
        (header::CACHE_CONTROL, "no-cache"),
        (header::CONTENT_SECURITY_POLICY, CONTENT_SECURITY_POLICY),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::REFERRER_POLICY, "no-referrer"),
    ];
    let known = request.get(header::IF_NONE_MATCH).and_then(|value| value.to_str().ok());
    match known.is_some_and(|known| known.split(',').any(|known| known.trim() == etag)) {
        true => (StatusCode::NOT_MODIFIED, headers).into_response(),
        false => (headers, asset.bytes).into_response(),
    }
}

fn content_type(path: &str) -> &'static str {
    match path.rsplit_once('.').map(|(_, extension)| extension) {
        Some("html") => "text/html; charset=utf-8",
        Some("css") => "text/css; charset=utf-8",
        Some("mjs") => "text/javascript; charset=utf-8",
        Some("svg") => "image/svg+xml",
        _ => "text/plain; charset=utf-8",
    }
}

fn etag(bytes: &[u8]) -> String {
    format!("\"{}\"", hex(&Sha256::digest(bytes)[..16]))
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    fn files_below(dir: &std::path::Path) -> Vec<PathBuf> {
        let entries = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
        entries
            .flat_map(|path| if path.is_dir() { files_below(&path) } else { vec![path] })
            .collect()
    }

    #[test]
    fn every_file_of_the_page_is_part_of_the_program() {
        let root = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("assets/ui");
        let mut on_disk: Vec<String> = files_below(&root)
            .iter()
            .map(|path| path.strip_prefix(&root).unwrap().to_str().unwrap().to_owned())
            .collect();
        let mut served: Vec<&str> = ASSETS.iter().map(|asset| asset.path).collect();
        on_disk.sort();
        served.sort();
        assert_eq!(served, on_disk);
    }

    #[test]
    fn files_have_their_type_and_the_policy() {
        for (path, kind) in [
            ("index.html", "text/html; charset=utf-8"),
            ("style.css", "text/css; charset=utf-8"),
            ("main.mjs", "text/javascript; charset=utf-8"),
            ("icon.svg", "image/svg+xml"),
            ("vendor/uplot/LICENSE", "text/plain; charset=utf-8"),
        ] {
            let response = serve(path, &HeaderMap::new());
            assert_eq!(response.status(), StatusCode::OK, "{path}");
            assert_eq!(response.headers()[header::CONTENT_TYPE], kind, "{path}");
        }
        for asset in &ASSETS {
            let response = serve(asset.path, &HeaderMap::new());
            for (name, value) in [
                (header::CONTENT_SECURITY_POLICY, CONTENT_SECURITY_POLICY),
                (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
                (header::REFERRER_POLICY, "no-referrer"),
            ] {
                assert_eq!(response.headers()[name], value, "{}", asset.path);
            }
        }
    }

    #[test]
    fn an_unchanged_file_is_not_sent_again_and_others_do_not_exist() {
        let first = serve(INDEX, &HeaderMap::new());
        for (known, status) in [
            (
                first.headers()[header::ETAG].to_str().unwrap(),
                StatusCode::NOT_MODIFIED,
            ),
            ("\"other\"", StatusCode::OK),
        ] {
            let headers = HeaderMap::from_iter([(header::IF_NONE_MATCH, known.parse().unwrap())]);
            assert_eq!(serve(INDEX, &headers).status(), status, "{known}");
        }
        for path in ["", "nothing", "../models/tiny/config.json", "/etc/passwd", "views/"] {
            assert_eq!(serve(path, &HeaderMap::new()).status(), StatusCode::NOT_FOUND, "{path}");
        }
    }

    // A module that is not preloaded costs a round trip more, since the browser finds it in another one.
    #[test]
    fn the_page_names_all_modules_and_styles() {
        let index = std::str::from_utf8(ASSETS.iter().find(|asset| asset.path == INDEX).unwrap().bytes).unwrap();
        let loaded = |asset: &&Asset| asset.path.ends_with(".mjs") || asset.path.ends_with(".css");
        for asset in ASSETS
            .iter()
            .filter(loaded)
            .filter(|asset| asset.path != "protocol.mjs")
        {
            assert!(index.contains(&format!("\"/ui/{}\"", asset.path)), "{}", asset.path);
        }
    }

    // Comments of the vendored library name pages of others; nothing that a browser would load does.
    #[test]
    fn nothing_refers_to_another_host() {
        let url = regex::Regex::new(r#"(?i)(https?|wss?|ftp):|["'(]//"#).unwrap();
        let namespace = r#"xmlns="http://www.w3.org/2000/svg""#;
        for asset in ASSETS.iter().filter(|asset| !asset.path.ends_with("LICENSE")) {
            let text = std::str::from_utf8(asset.bytes).unwrap();
            let found = text.lines().find(|line| {
                let line = line.trim_start();
                let is_comment = asset.path.starts_with("vendor/") && (line.starts_with("//") || line.starts_with('*'));
                !is_comment && url.is_match(&line.replace(namespace, ""))
            });
            assert_eq!(found, None, "{}", asset.path);
        }
    }
}
