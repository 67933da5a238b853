package main

import (
	"testing"
	"time"
)

func TestBucketsCoverEveryDurationOnce(t *testing.T) {
	for _, d := range []time.Duration{0, 1, 63, 64, 65, 127, 128, 1000, time.Millisecond, time.Hour, 1<<63 - 1} {
		bucket := bucketOf(d)
		if d > bucketTop(bucket) || bucket > 0 && d <= bucketTop(bucket-1) {
			t.Errorf("%d ns is outside bucket %d", d, bucket)
		}
	}
}

func TestPercentilesAreWithinOneStep(t *testing.T) {
	var h histogram
	for i := range 1000 {
		h.record(time.Duration(i+1) * time.Microsecond)
	}
	for share, want := range map[float64]time.Duration{0.5: 500, 0.99: 990, 0.999: 999, 1: 1000} {
		want *= time.Microsecond
		if got := h.percentile(share); got < want || got > want+want/stepsPerOctave {
			t.Errorf("percentile %v is %v, want %v", share, got, want)
		}
	}
}
