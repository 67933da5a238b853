package main

import (
	"math/bits"
	"time"
)

// histogram counts durations in log-linear buckets: every power of two of nanoseconds is cut into
// 64 equal steps, so a percentile is at most 1.6 % too high. Recording allocates nothing.
type histogram struct {
	buckets [64 * stepsPerOctave]uint64
	total   uint64
	largest time.Duration
}

const (
	stepBits       = 6
	stepsPerOctave = 1 << stepBits
)

func bucketOf(d time.Duration) int {
	ns := uint64(max(d, 0))
	if ns < stepsPerOctave {
		return int(ns)
	}
	octave := bits.Len64(ns) - stepBits - 1
	return (octave+1)*stepsPerOctave + int(ns>>octave) - stepsPerOctave
}

// bucketTop is the largest duration that bucketOf puts into bucket.
func bucketTop(bucket int) time.Duration {
	if bucket < stepsPerOctave {
		return time.Duration(bucket)
	}
	octave := bucket/stepsPerOctave - 1
	step := uint64(bucket%stepsPerOctave + stepsPerOctave)
	return time.Duration((step+1)<<octave - 1)
}

func (h *histogram) record(d time.Duration) {
	h.buckets[bucketOf(d)]++
	h.total++
	h.largest = max(h.largest, d)
}

func (h *histogram) add(other *histogram) {
	for i, count := range other.buckets {
		h.buckets[i] += count
	}
	h.total += other.total
	h.largest = max(h.largest, other.largest)
}

// percentile returns the duration that the share (0..1) of all recorded ones does not exceed.
func (h *histogram) percentile(share float64) time.Duration {
	rank := uint64(share * float64(h.total))
	var seen uint64
	for bucket, count := range h.buckets {
		seen += count
		if count > 0 && seen >= rank {
			return min(bucketTop(bucket), h.largest)
		}
	}
	return h.largest
}
