"""Requests, queue order, admission, step plans; knows no clock, socket or tensor."""
