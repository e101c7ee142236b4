"""What torch's own objects say about this process among the ranks of a job; nothing here communicates."""
