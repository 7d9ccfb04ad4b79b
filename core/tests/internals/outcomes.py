"""What else tests know of the ways on which an outcome comes back: the timer and the wake-up of event loops."""

from headrace._checked import batch_alone as batch_alone
from headrace._engine.futures import LoopWaker as LoopWaker
from headrace._scheduling.timer import shared_timer as shared_timer
