//! Access control: a token in the printed address, then a cookie; a bearer token; or a header that
//! a proxy sets.
//!
//! A request must name a host that no attacker controls (`Host`), and a request of a page must come
//! from the portal's own page (`Origin`); otherwise a web site could read the portal through the
//! browser of its user.

use std::net::{IpAddr, SocketAddr};

use anyhow::{Result, bail};
use axum::extract::{Request, State};
use axum::http::header::{
    AUTHORIZATION, CACHE_CONTROL, CONTENT_LENGTH, CONTENT_TYPE, COOKIE, HOST, LOCATION, ORIGIN,
    SET_COOKIE,
};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use std::sync::Arc;

use crate::Shared;
use crate::error::Refusal;

const TOKEN_LENGTH_MIN: usize = 16;
/// The largest body of a request.
const BODY_BYTES_MAX: u64 = 16 * 1024;
/// The content security policy: the page loads nothing from other origins, runs only its own script
/// files, and cannot be framed.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; font-src 'self'; \
                      connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// Paths that probes of containers request without a token.
const PROBES: [&str; 2] = ["/healthz", "/readyz"];

/// A secret that authorises its holder. Its `Debug` text does not show it.
#[derive(Clone)]
pub struct Token(String);

impl std::fmt::Debug for Token {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("Token")
    }
}

impl Token {
    /// Creates a token of 128 random bits.
    pub fn random() -> Result<Self> {
        let mut bits = [0; 16];
        getrandom::fill(&mut bits)
            .map_err(|error| anyhow::anyhow!("the system has no random numbers: {error}"))?;
        Ok(Self(bits.iter().map(|byte| format!("{byte:02x}")).collect()))
    }

    /// Returns a token that the user chose.
    pub fn chosen(text: String) -> Result<Self> {
        let is_legal =
            text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte));
        if text.len() < TOKEN_LENGTH_MIN || !is_legal {
            bail!(
                "the token of the portal needs at least {TOKEN_LENGTH_MIN} letters, digits, - or _"
            );
        }
        Ok(Self(text))
    }

    /// Returns the token for the printed address.
    pub fn text(&self) -> &str {
        &self.0
    }

    /// Compares digests, in a time that does not depend on where the texts differ.
    fn is(&self, text: &str) -> bool {
        blake3::hash(self.0.as_bytes()) == blake3::hash(text.as_bytes())
    }
}

/// The access rules of a portal.
#[derive(Clone, Debug, Default)]
pub struct Access {
    /// The token that a request must carry; `None`: only requests with the trusted header are answered.
    pub token: Option<Token>,
    /// A header that a proxy sets for authenticated users.
    pub trusted_header: Option<HeaderName>,
    /// Names of this server besides `localhost` and addresses.
    pub hosts: Vec<String>,
}

impl Access {
    /// Rejects an address that other machines can reach, unless the user has chosen a token or a
    /// trusted header.
    pub fn check(&self, address: SocketAddr, is_token_chosen: bool) -> Result<()> {
        if !address.ip().is_loopback() && self.trusted_header.is_none() && !is_token_chosen {
            bail!(
                "other machines can reach {address}: choose a token with GRISTMILL_PORTAL_TOKEN, or name the header that \
                 a proxy in front sets with --trust-header"
            );
        }
        Ok(())
    }

    fn knows_host(&self, headers: &HeaderMap) -> bool {
        let Some(host) = headers.get(HOST).and_then(|host| host.to_str().ok()) else {
            return false;
        };
        let name = host_name(host);
        // DNS rebinding needs a name: an attacker controls neither addresses nor localhost.
        name.eq_ignore_ascii_case("localhost")
            || name.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>().is_ok()
            || self.hosts.iter().any(|known| known.eq_ignore_ascii_case(name))
    }

    fn is_known(&self, headers: &HeaderMap, cookie: &str) -> bool {
        let has_header =
            |name: &HeaderName| headers.get(name).is_some_and(|value| !value.is_empty());
        if self.trusted_header.as_ref().is_some_and(has_header) {
            return true;
        }
        let Some(token) = &self.token else { return false };
        let bearer = headers
            .get(AUTHORIZATION)
            .and_then(|value| value.to_str().ok()?.strip_prefix("Bearer "));
        if let Some(given) = bearer {
            return token.is(given.trim());
        }
        let cookies = headers.get_all(COOKIE).iter().filter_map(|value| value.to_str().ok());
        let mut pairs = cookies
            .flat_map(|cookies| cookies.split(';'))
            .filter_map(|pair| pair.trim().split_once('='));
        pairs.any(|(name, given)| name == cookie && token.is(given))
    }
}

/// Returns the name in `name:port`.
fn host_name(host: &str) -> &str {
    if host.starts_with('[') {
        return host.find(']').map_or(host, |end| &host[..=end]);
    }
    host.rsplit_once(':').map_or(host, |(name, _)| name)
}

/// Whether a page of this server sent the request, or no page did.
fn is_from_here(headers: &HeaderMap) -> bool {
    let Some(origin) = headers.get(ORIGIN) else { return true };
    let Some((_, authority)) = origin.to_str().ok().and_then(|origin| origin.split_once("://"))
    else {
        return false;
    };
    headers
        .get(HOST)
        .and_then(|host| host.to_str().ok())
        .is_some_and(|host| host.eq_ignore_ascii_case(authority))
}

/// The portal, and the name of its cookie, which contains its port because browsers share cookies between ports.
#[derive(Clone, Debug)]
pub struct Gate {
    pub shared: Arc<Shared>,
    pub cookie: Arc<str>,
}

/// Rejects unauthorised requests, and adds the headers that every answer has.
pub async fn guard(State(gate): State<Gate>, request: Request, next: Next) -> Response {
    let mut response = pass(&gate, request, next).await;
    let headers = response.headers_mut();
    for (name, value) in [
        ("content-security-policy", POLICY),
        ("x-content-type-options", "nosniff"),
        ("x-frame-options", "DENY"),
        ("referrer-policy", "no-referrer"),
        ("cross-origin-opener-policy", "same-origin"),
        ("cross-origin-resource-policy", "same-origin"),
    ] {
        headers.insert(HeaderName::from_static(name), HeaderValue::from_static(value));
    }
    headers.entry(CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store"));
    response
}

async fn pass(gate: &Gate, request: Request, next: Next) -> Response {
    let access = &gate.shared.options.access;
    if !access.knows_host(request.headers()) {
        let message = "this name of the portal is unknown; open it by its address, or start it with --host NAME";
        return Refusal::new(StatusCode::FORBIDDEN, message).into_response();
    }
    if !is_from_here(request.headers()) {
        return Refusal::new(StatusCode::FORBIDDEN, "another site sent this request")
            .into_response();
    }
    // Probes have no token, and learn only that the portal serves.
    if PROBES.contains(&request.uri().path()) && request.method() == Method::GET {
        return plain(StatusCode::OK, "ok");
    }
    if let Some(response) = exchange(gate, &request) {
        return response;
    }
    let is_api = request.uri().path().starts_with("/api/");
    if !access.is_known(request.headers(), &gate.cookie) {
        let message = "open the address that `gristmill portal` printed, or add `?token=` and the token with which it was started";
        return match is_api {
            true => Refusal::new(StatusCode::UNAUTHORIZED, message).into_response(),
            false => plain(StatusCode::UNAUTHORIZED, message),
        };
    }
    if request.method() == Method::POST {
        // No action reads its body, so a body without a declared length is harmless.
        let length = request
            .headers()
            .get(CONTENT_LENGTH)
            .and_then(|length| length.to_str().ok()?.parse::<u64>().ok());
        if length.is_some_and(|length| length > BODY_BYTES_MAX) {
            return Refusal::new(StatusCode::PAYLOAD_TOO_LARGE, "the request is too large")
                .into_response();
        }
        let is_json = request
            .headers()
            .get(CONTENT_TYPE)
            .is_some_and(|kind| kind.as_bytes().starts_with(b"application/json"));
        if !is_json {
            let message = "a request that changes something needs content-type: application/json";
            return Refusal::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, message).into_response();
        }
        if gate.shared.options.is_read_only {
            return Refusal::new(StatusCode::FORBIDDEN, "this portal is read-only").into_response();
        }
    }
    next.run(request).await
}

/// Answers the printed address: moves its token into a cookie, and redirects to the address without
/// it.
fn exchange(gate: &Gate, request: &Request) -> Option<Response> {
    if request.method() != Method::GET || request.uri().path() != "/" {
        return None;
    }
    let given = request.uri().query()?.split('&').find_map(|pair| pair.strip_prefix("token="))?;
    let token = gate.shared.options.access.token.as_ref().filter(|token| token.is(given))?;
    let cookie = format!(
        "{}={}; HttpOnly; SameSite=Strict; Path=/; Max-Age=2592000",
        gate.cookie,
        token.text()
    );
    let mut response = (StatusCode::SEE_OTHER, [(LOCATION, "/")]).into_response();
    response.headers_mut().insert(SET_COOKIE, HeaderValue::from_str(&cookie).ok()?);
    Some(response)
}

fn plain(status: StatusCode, message: &str) -> Response {
    (status, [(CONTENT_TYPE, "text/plain; charset=utf-8")], format!("{message}\n")).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn name_of_a_host_has_no_port() {
        for (host, name) in
            [("a:1", "a"), ("a", "a"), ("[::1]:80", "[::1]"), ("[::1]", "[::1]"), ("", "")]
        {
            assert_eq!(host_name(host), name);
        }
    }

    #[test]
    fn chosen_token_is_long_and_plain() {
        assert!(Token::chosen("0123456789abcdef".into()).is_ok());
        for text in ["", "short", "0123456789abcde;", "0123456789 abcdef"] {
            assert!(Token::chosen(text.into()).is_err(), "{text:?}");
        }
        assert_eq!(Token::random().expect("random").text().len(), 32);
        assert!(!format!("{:?}", Token::chosen("0123456789abcdef".into())).contains("0123"));
    }

    #[test]
    fn address_that_others_reach_needs_a_decision() {
        let access = Access { token: Token::random().ok(), ..Access::default() };
        let other: SocketAddr = "0.0.0.0:7780".parse().expect("an address");
        assert!(access.check(other, false).is_err() && access.check(other, true).is_ok());
        assert!(access.check("[::1]:7780".parse().expect("an address"), false).is_ok());
        let header =
            Access { trusted_header: Some(HeaderName::from_static("x-user")), ..Access::default() };
        assert!(header.check(other, false).is_ok());
    }
}
