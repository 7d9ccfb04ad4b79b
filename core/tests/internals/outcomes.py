"""What else tests know of the ways on which an outcome comes back: the timer and the wake-up of event loops."""

from headrace._checked import batch_alone as batch_alone
from headrace._running.futures import LoopWaker as LoopWaker
from headrace._running.threads import timer as shared_timer
