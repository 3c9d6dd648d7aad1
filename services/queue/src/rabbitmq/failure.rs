//! Finds the words when the broker refuses or does not answer, and which kind of error it is.

use std::io;

use lapin::ErrorKind;
use lapin::protocol::{AMQPErrorKind, AMQPHardError, AMQPSoftError};

use super::address::Address;
use crate::Error;

/// What was being done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum During {
    Connecting,
    Declaring,
    /// The queue was there before.
    Looking,
    Working,
}

/// What the broker calls an error.
pub(super) fn reply(error: &lapin::Error) -> Option<&AMQPErrorKind> {
    match error.kind() {
        ErrorKind::ProtocolError(error) => Some(error.kind()),
        _ => None,
    }
}

/// The broker's own words, or the system's.
pub(super) fn said(error: &lapin::Error) -> String {
    match error.kind() {
        ErrorKind::ProtocolError(error) => error.get_message().to_string(),
        ErrorKind::IOError(error) => error.to_string(),
        _ => error.to_string(),
    }
}

/// The user may not do this.
pub(super) fn is_refusal(error: &lapin::Error) -> bool {
    matches!(reply(error), Some(AMQPErrorKind::Soft(AMQPSoftError::ACCESSREFUSED)))
}

/// The error of the broker or the connection, as one of ours.
pub(super) fn explain(address: &Address, during: During, error: &lapin::Error) -> Error {
    let said = said(error);
    let (user, vhost) = (address.user(), &address.uri.vhost);
    let misconfigured = |reason: String| address.misconfigured(reason);
    match (reply(error), during) {
        _ if is_refusal(error) && during == During::Connecting => {
            misconfigured(format!("the broker refuses user {user} or the password; check the URL ({said})"))
        }
        _ if is_refusal(error) => misconfigured(no_permission(address, &said)),
        (Some(AMQPErrorKind::Hard(AMQPHardError::NOTALLOWED)), During::Connecting) => misconfigured(format!(
            "there is no virtual host {vhost}, or user {user} may not use it; create it or check the URL ({said})"
        )),
        (Some(AMQPErrorKind::Soft(AMQPSoftError::PRECONDITIONFAILED)), During::Declaring) => misconfigured(format!(
            "it exists, but is another kind of queue; delete it when it is empty, or choose another prefix ({said})"
        )),
        (Some(AMQPErrorKind::Soft(AMQPSoftError::NOTFOUND)), During::Looking) => misconfigured(format!(
            "it was deleted, with the messages that were in it; start again to create it, then retry the jobs ({said})"
        )),
        _ if is_certificate(error) && address.encrypted() => misconfigured(format!(
            "the broker's certificate is not trusted; name its authority in the URL, ?cacertfile=PATH ({said})"
        )),
        (_, During::Connecting) if nobody_listens(error) => {
            address.unavailable(format!("nobody listens there; is RabbitMQ running? ({said})"))
        }
        (_, During::Connecting) => address.unavailable(format!("cannot connect ({said})")),
        _ => address.unavailable(said),
    }
}

/// The user may connect, but not this.
pub(super) fn no_permission(address: &Address, said: &str) -> String {
    format!("user {} may not use it; ask for configure, write and read permission ({said})", address.user())
}

fn io_kind(error: &lapin::Error) -> Option<io::ErrorKind> {
    match error.kind() {
        ErrorKind::IOError(error) => Some(error.kind()),
        _ => None,
    }
}

fn is_certificate(error: &lapin::Error) -> bool {
    io_kind(error) == Some(io::ErrorKind::InvalidData)
}

fn nobody_listens(error: &lapin::Error) -> bool {
    io_kind(error) == Some(io::ErrorKind::ConnectionRefused)
}
