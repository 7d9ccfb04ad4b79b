"""What is noted of requests: counters, the access log, the log of failures, times of each request. And changes of health."""
