"""Is it healthy? Diagnosis of the files of a cluster or a job."""
