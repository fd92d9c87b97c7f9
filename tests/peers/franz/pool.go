package main

import (
	"context"
	"errors"
	"hash/fnv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

// pool is the usual worker pool: a key's hash picks a worker's channel, a mutex guards the offset tracker, a ticker
// commits each partition's prefix of finished records.
func pool(ctx context.Context, args []string) error {
	c := newCommon("pool")
	group := c.flags.String("g", "franz-pool", "group")
	workers := c.flags.Int("workers", 8, "workers")
	delay := c.flags.Duration("delay", 0, "work per record")
	interval := c.flags.Duration("commit", 500*time.Millisecond, "commit interval")
	opts := c.parse(args)

	t := &tracker{partitions: map[int32]*window{}}
	commit := func(cl *kgo.Client) {
		if offsets := t.snapshot(*c.topic); len(offsets[*c.topic]) > 0 {
			cl.CommitOffsetsSync(context.Background(), offsets, nil)
		}
	}
	client, err := kgo.NewClient(append(opts,
		kgo.ConsumerGroup(*group), kgo.ConsumeTopics(*c.topic), kgo.DisableAutoCommit(),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.OnPartitionsRevoked(func(_ context.Context, cl *kgo.Client, revoked map[string][]int32) {
			commit(cl)
			t.drop(revoked[*c.topic])
		}),
		kgo.OnPartitionsLost(func(_ context.Context, _ *kgo.Client, lost map[string][]int32) {
			t.drop(lost[*c.topic])
		}))...)
	if err != nil {
		return err
	}
	defer client.Close()

	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var finished atomic.Int64
	channels := make([]chan *kgo.Record, *workers)
	var running sync.WaitGroup
	for i := range channels {
		channels[i] = make(chan *kgo.Record, 1024)
		running.Add(1)
		go func(records <-chan *kgo.Record) {
			defer running.Done()
			for record := range records {
				if *delay > 0 {
					time.Sleep(*delay)
				}
				t.finish(record.Partition, record.Offset)
				if finished.Add(1) == int64(*c.records) {
					cancel()
				}
			}
		}(channels[i])
	}
	go func() {
		ticker := time.NewTicker(*interval)
		defer ticker.Stop()
		for {
			select {
			case <-ticker.C:
				commit(client)
			case <-ctx.Done():
				return
			}
		}
	}()

	var start time.Time
	for {
		fetches := client.PollFetches(ctx)
		if err := fetches.Err0(); errors.Is(err, context.Canceled) {
			break
		}
		if start.IsZero() && fetches.NumRecords() > 0 {
			start = time.Now()
		}
		fetches.EachPartition(func(p kgo.FetchTopicPartition) {
			t.begin(p.Partition, p.Records)
			for _, record := range p.Records {
				h := fnv.New32a()
				h.Write(record.Key)
				channels[h.Sum32()%uint32(*workers)] <- record
			}
		})
	}
	for _, channel := range channels {
		close(channel)
	}
	running.Wait()
	done(int(finished.Load()), start)
	commit(client)
	return nil
}

// tracker knows, per partition, the prefix of records that are finished. Offsets are taken to have no gaps.
type tracker struct {
	mu         sync.Mutex
	partitions map[int32]*window
}

// window is one partition's unfinished stretch: done[i] is about the offset first+i.
type window struct {
	first, committed int64
	epoch            int32
	done             []bool
}

func (t *tracker) begin(partition int32, records []*kgo.Record) {
	if len(records) == 0 {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	w := t.partitions[partition]
	if w == nil {
		w = &window{first: records[0].Offset, committed: -1}
		t.partitions[partition] = w
	}
	w.epoch = records[len(records)-1].LeaderEpoch
	w.done = append(w.done, make([]bool, records[len(records)-1].Offset+1-w.first-int64(len(w.done)))...)
}

func (t *tracker) finish(partition int32, offset int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if w := t.partitions[partition]; w != nil && offset >= w.first {
		w.done[offset-w.first] = true
	}
}

func (t *tracker) drop(partitions []int32) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, partition := range partitions {
		delete(t.partitions, partition)
	}
}

func (t *tracker) snapshot(topic string) map[string]map[int32]kgo.EpochOffset {
	t.mu.Lock()
	defer t.mu.Unlock()
	offsets := map[int32]kgo.EpochOffset{}
	for partition, w := range t.partitions {
		n := 0
		for n < len(w.done) && w.done[n] {
			n++
		}
		w.done = w.done[n:]
		w.first += int64(n)
		if w.first != w.committed && (n > 0 || w.committed >= 0) {
			offsets[partition] = kgo.EpochOffset{Epoch: w.epoch, Offset: w.first}
			w.committed = w.first
		}
	}
	return map[string]map[int32]kgo.EpochOffset{topic: offsets}
}
