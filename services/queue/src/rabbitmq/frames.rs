//! Frames that are queued for the broker in the order of the calls.

use std::pin::Pin;
use std::task::{Context, Poll, Waker};

/// A queued frame, which completes once it is written.
pub(super) type Frame<'a, T = ()> = Pin<Box<dyn Future<Output = lapin::Result<T>> + Send + 'a>>;

/// Polls a call once, which queues its frame.
pub(super) fn queued<T: Send + 'static>(mut frame: Frame<'_, T>) -> Frame<'_, T> {
    match frame.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(result) => Box::pin(std::future::ready(result)),
        Poll::Pending => frame,
    }
}
