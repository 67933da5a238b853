package main

import (
	"testing"
	"time"
)

func TestPublishAtRateMakesUpForWhatIsLate(t *testing.T) {
	start := time.Now()
	answer := new(histogram)
	calls := 0
	sent, err := publishAtRate(start, 2*time.Millisecond, start.Add(100*time.Millisecond), answer, func() error {
		if calls++; calls == 1 {
			time.Sleep(30 * time.Millisecond) // the next fifteen are due when it returns
		}
		return nil
	})
	if err != nil || sent != 51 || calls != 51 || answer.total != 51 {
		t.Errorf("%d sent, %d calls, %d answers, error %v", sent, calls, answer.total, err)
	}
	if took := time.Since(start); took < 100*time.Millisecond {
		t.Errorf("done after %v", took)
	}
}

func TestPublishWithoutIntervalGoesOnUntilTheEnd(t *testing.T) {
	start := time.Now()
	answer := new(histogram)
	sent, err := publishAtRate(start, 0, start.Add(50*time.Millisecond), answer, func() error {
		time.Sleep(time.Millisecond)
		return nil
	})
	if err != nil || sent < 2 || sent > 50 || answer.total != uint64(sent) {
		t.Errorf("%d sent, %d answers, error %v", sent, answer.total, err)
	}
	if took := time.Since(start); took < 50*time.Millisecond {
		t.Errorf("done after %v", took)
	}
}

func TestArrivalsCountFromTheTimeInTheBody(t *testing.T) {
	bodies := [][]byte{make([]byte, 20), make([]byte, sentAtBytes)}
	for _, body := range bodies {
		stampNow(body)
	}
	time.Sleep(5 * time.Millisecond)
	arrived := new(arrivals)
	arrived.note(bodies)
	if p50 := arrived.latency.percentile(0.5); arrived.count.Load() != 2 || p50 < 5*time.Millisecond || p50 > time.Second {
		t.Errorf("%d arrived, p50 %v", arrived.count.Load(), p50)
	}
}

func TestTopicsAreShared(t *testing.T) {
	settings := liveSettings{topic: "t"}
	if alone := settings.topicOf(7, 1); alone != "t" {
		t.Errorf("%q", alone)
	}
	if first, second, again := settings.topicOf(0, 2), settings.topicOf(1, 2), settings.topicOf(2, 2); first != "t-0" || second != "t-1" || again != first {
		t.Errorf("%q, %q, %q", first, second, again)
	}
}

func TestBodiesOfStoredMessages(t *testing.T) {
	data := appendStoredMessage(nil, "t", "", []byte("one"))
	data = appendStoredMessage(data, "t", "k\x01v", []byte("three"))
	bodies := bodiesOf(data)
	if len(bodies) != 2 || string(bodies[0]) != "one" || string(bodies[1]) != "three" {
		t.Errorf("%q", bodies)
	}
}
